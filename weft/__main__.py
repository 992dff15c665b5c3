"""`python -m weft` is the command `weft`."""

import weft_command

weft_command.main()
