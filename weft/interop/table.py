"""The architectures that can be read and written, by Hugging Face's name for them."""

from .gpt2 import GPT2
from .llama import LLAMA
from .switch import SWITCH
from .t5 import T5

ARCHITECTURES = {each.model_type: each for each in (T5, GPT2, LLAMA, SWITCH)}
