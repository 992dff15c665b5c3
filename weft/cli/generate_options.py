"""The options of `weft generate`: what is continued, how tokens are chosen.

Each is a type that Typer reads; those of repetition are `weft translate`'s too.
"""

from pathlib import Path
from typing import Annotated

from typer import Option

Prompt = Annotated[list[str] | None, Option(metavar="TEXT", help="What to go on from; may be given several times.")]
Prompts = Annotated[Path | None, Option(metavar="FILE", help='A file with an object a line: `{"prompt": "..."}`.')]
Out = Annotated[
    Path | None, Option(metavar="FILE", help="Where --prompts go, line by line; with what is there, it goes on.")
]
Batch = Annotated[int, Option(min=1, metavar="N", help="How many of --prompts are continued at once.")]
Tokens = Annotated[
    int,
    Option(
        min=1,
        metavar="N",
        help="At most so many tokens more; where the model's length is full it goes on from the last of them.",
    ),
]
Temperature = Annotated[float, Option(min=0.0, help="0 takes the likeliest token; higher is wilder.")]
TopK = Annotated[int | None, Option(min=1, metavar="K", help="Draw from the K likeliest tokens.")]
TopP = Annotated[float | None, Option(min=0.0, max=1.0, metavar="P", help="Draw from the likeliest that make up P.")]
MinP = Annotated[
    float | None, Option(min=0.0, max=1.0, metavar="P", help="Draw from those of P times the best's chance.")
]
Repetition = Annotated[float, Option(metavar="X", help="Divides the chance of tokens that have been; 1 is none.")]
NoRepeat = Annotated[int | None, Option(min=1, metavar="N", help="No sequence of N tokens comes twice.")]
MinTokens = Annotated[int, Option(min=0, metavar="N", help="At least so many tokens before an end.")]
End = Annotated[
    list[int] | None, Option(metavar="ID", help="A text ends with this id too; may be given several times.")
]
Samples = Annotated[int, Option(min=1, metavar="N", help="So many continuations of each prompt.")]
Seed = Annotated[int, Option(min=0, help="What is drawn follows from it.")]
Begin = Annotated[
    bool | None,
    Option(help="Whether a prompt is a text's beginning; if not said, where the run learned short texts."),
]
Draft = Annotated[
    Path | None,
    Option(metavar="RUN", help="A smaller run with the same tokenizer that proposes tokens: the same, sooner."),
]
Ngrams = Annotated[
    int | None, Option(min=1, metavar="N", help="Propose what followed the last N tokens where they came before.")
]
Ahead = Annotated[int, Option(min=1, metavar="N", help="So many tokens are proposed at a time.")]
Stream = Annotated[bool, Option("--stream", help="Print a text as it is written.")]
