"""How ops become local arrays and collectives: what meets, moves, is padded, is recorded. No op stands here."""
