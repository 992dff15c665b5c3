"""Fuzzers: seeds of every format that weft reads, changed at random; what comes out is a result or a WeftError."""
