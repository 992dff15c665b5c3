"""Random programs written as text, run by weft and by plain jnp, under many layouts, in processes of their own."""
