"""The architectures that can be read and written, by their `model_type`."""

from .gpt2 import GPT2
from .llama import LLAMA
from .switch import SWITCH
from .t5 import MT5, T5, UMT5

ARCHITECTURES = {family.model_type: family for family in (T5, MT5, UMT5, GPT2, LLAMA, SWITCH)}
