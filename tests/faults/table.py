"""The faults, room by room: what a careless change could write, and the tests most likely to see it.

Each is a small replacement in one file. `near` names files, or tests in them (`path::test`), or tests by words
(`path -k words`).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One wrong line."""

    room: str
    name: str
    file: str
    old: str
    """What stands there, which must be there once."""
    new: str
    near: tuple[str, ...]

    def put_into(self, text: str) -> str:
        """The text of the file with the fault in it."""
        return text.replace(self.old, self.new, 1)


FAULTS: list[Fault] = []


def fault(name: str, file: str, old: str, new: str, *near: str) -> None:
    """Adds a fault to the table, under the room of its file."""
    room = file.split("/")[0]
    room = {
        "lower": "ops",
        "graph.py": "program",
        "primitives.py": "program",
        "schedule.py": "plan",
        "nn": "train",
        "optim.py": "train",
    }.get(room, room)
    FAULTS.append(Fault(room, name, f"weft/{file}", old, new, tuple(f"tests/{path}" for path in near)))


_CONTRACT = "ops/test_contract.py -k 'under_every and {}'"
_ENTROPY = "nn/test_loss.py"

# fmt: off

# ---- operations and what lowers them: reductions

fault("sum-forgets-its-all-reduce", "ops/reduce.py",
      "return r.finish(array, partial=r.axes, rename=rename)", "return r.finish(array, rename=rename)",
      _CONTRACT.format("reduce"))
fault("mean-divides-by-the-local-size", "ops/reduce.py",
      "return (total / r.count).astype(sent)", "return (total / (r.count // r.ways)).astype(sent)",
      _CONTRACT.format("reduce"))
fault("gradient-of-max-goes-to-all-ties", "ops/reduce.py",
      "all_reduce(jnp.sum(hits * t, axis=r.positions), r.axes) / count",
      "all_reduce(jnp.sum(hits * t, axis=r.positions), r.axes)",
      "ops/test_meanings.py -k 'ties or reduced_as'")
fault("ties-of-max-counted-on-one-processor", "ops/reduce.py",
      "count = all_reduce(jnp.sum(hits, axis=r.positions), r.axes)", "count = jnp.sum(hits, axis=r.positions)",
      "ops/test_meanings.py -k 'ties or reduced_as'")
fault("prod-multiplies-by-its-padding", "ops/reduce.py",
      "jnp.prod(a, axis=r.positions), padding=1)", "jnp.prod(a, axis=r.positions), padding=0)",
      "ops/test_uneven.py -k 'changes_no_value or does_not_matter'", _CONTRACT.format("uneven"))
fault("all-holds-where-one-processor-has-it", "ops/reduce.py",
      "all_min(array, r.axes) if r.axes else array", "all_max(array, r.axes)",
      _CONTRACT.format("reduce"), "ops/test_meanings.py -k 'integers or reduced_as'")
fault("softmax-counts-its-padding", "ops/reduce.py",
      "as_varying(a, r.axes), padding=-jnp.inf)", "as_varying(a, r.axes), padding=0)",
      "ops/test_uneven.py -k 'changes_no_value or does_not_matter'", _CONTRACT.format("uneven"))
fault("softmax-shifts-by-the-local-maximum", "ops/reduce.py",
      "keepdims=True), r.axes)\n    if only_finite", "keepdims=True), ())\n    if only_finite",
      _CONTRACT.format("reduce"))
fault("logsumexp-of-nothing-is-nan", "ops/reduce.py",
      "    if only_finite:\n", "    if not only_finite:\n",
      "ops/test_meanings.py -k reduced_as")
fault("slope-of-a-variance-is-half", "ops/moments.py",
      "jnp.sum(2 * rest * t, axis=r.positions)", "jnp.sum(rest * t, axis=r.positions)",
      "ops/test_moments.py", _CONTRACT.format("reduce"))
fault("variance-counts-its-padding", "ops/moments.py",
      "rest = r.fill(a - jnp.expand_dims(mean, r.positions), 0)", "rest = a - jnp.expand_dims(mean, r.positions)",
      "ops/test_uneven.py -k 'changes_no_value or does_not_matter'", _CONTRACT.format("uneven"))

# products

fault("einsum-casts-before-it-sums", "ops/einsum.py",
      "return cast(_lower(plan, xs, _sum_dtype(xs, dtype)), dtype)",
      "return _lower(plan, [cast(x, dtype) for x in xs], None)",
      "ops/test_meanings.py -k asked_for_as_integers", "ops/test_dtypes.py")
fault("einsum-multiplies-its-padding", "ops/einsum.py",
      "return [meeting.fill(array, x.dims, 0) for array, x in zip(arrays, xs, strict=True)]", "return list(arrays)",
      "ops/test_uneven.py -k 'changes_no_value or does_not_matter'", _CONTRACT.format("uneven"))
fault("slope-of-a-wide-einsum-is-wide", "ops/einsum.py",
      "jax.jvp(self._plain, arrays, tangents)[1].astype(dtype)",
      "jax.jvp(lambda *xs: self._plain(*(x.astype(dtype) for x in xs)), arrays, tangents)[1]",
      "ops/test_dtypes.py -k narrow_floats_again")
fault("a-ring-takes-the-piece-of-the-other-side", "lower/overlap.py",
      "start = (here - turn) % self.ways * size", "start = (here + turn) % self.ways * size",
      "ops/test_overlap.py::test_a_ring_gives_the_same_numbers_and_sends_the_same_bytes")
fault("a-ring-sums-the-piece-of-the-other-side", "lower/overlap.py",
      "slot = (here + self.ways - 1 - turn) % self.ways", "slot = (here + 1 + turn) % self.ways",
      "ops/test_overlap.py::test_a_ring_gives_the_same_numbers_and_sends_the_same_bytes")
fault("a-sum-is-scattered-along-the-first-dim", "lower/move.py",
      "array = collectives.reduce_scatter(array, axes, position)", "array = collectives.reduce_scatter(array, axes, 0)",
      "spmd/test_what_is_sent.py", _CONTRACT.format("einsum"))
fault("a-partial-sum-is-scattered-and-not-summed-over-the-rest", "lower/move.py",
      "        return collectives.all_reduce(array, left)\n",
      "        return array if scatters else collectives.all_reduce(array, left)\n",
      _CONTRACT.format("einsum"), "properties/test_random_programs.py", "ops/test_take_one_axis.py")
fault("axes-of-a-dim-are-reordered-the-other-way", "lower/move.py",
      "holders.transpose([have.index(axis) for axis in want])",
      "holders.transpose([want.index(axis) for axis in have])",
      "ops/test_renames.py")
fault("rows-sent-to-experts-come-back-with-their-parts-swapped", "ops/dispatch.py",
      "parts = (*want[:position], lead, want[position][len(lead) :], *want[position + 1 :])",
      "parts = (*want[:position], want[position][len(lead) :], lead, *want[position + 1 :])",
      "nn/test_moe.py -k any_axis", "nn/test_layouts.py -k experts")
fault("statistics-of-slices-are-not-summed", "nn/moe.py",
      "sums = wf.sum(statistics, over=slices) if slices else statistics",
      "sums = wf.mean(statistics, over=slices) if slices else statistics",
      "nn/test_layouts.py -k experts", "nn/test_dropless.py -k layout")
fault("a-dropless-token-of-an-expert-elsewhere-counts-here", "nn/dropless.py",
      "return jnp.where((chosen >= 0) & (chosen < count), chosen, count)",
      "return jnp.where(chosen < count, jnp.maximum(chosen, 0), count)",
      "nn/test_dropless.py -k layout")
fault("the-blocks-of-a-grouped-product-have-the-group-before-theirs", "kernels/grouped.py",
      'is_after = first[1:groups] <= ', 'is_after = first[1:groups] < ', "kernels/test_grouped.py")
fault("a-ragged-product-counts-every-group-for-every-row", "primitives.py",
      "return groups, max(rows // groups, 1), results // rows, summed",
      "return groups, max(rows // groups, 1), groups * results // rows, summed",
      "nn/test_dropless.py -k flops")

# indices

fault("take-looks-one-slice-further", "ops/index.py",
      "return ids - index(axes).astype(ids.dtype) * size if axes else ids",
      "return ids - (index(axes) + 1).astype(ids.dtype) * size if axes else ids",
      _CONTRACT.format("index"))
fault("take-finds-its-padding", "ops/index.py",
      "jnp.where(ids_array < dim.count, ids_array, dim.size)", "jnp.where(ids_array < dim.size, ids_array, dim.size)",
      "ops/test_uneven.py -k 'changes_no_value or does_not_matter'", _CONTRACT.format("uneven"))
fault("take-of-a-negative-id-is-the-first-entry", "ops/index.py",
      "inside = (ids >= 0) & (ids < table.shape[axis])", "inside = ids < table.shape[axis]",
      "ops/test_meanings.py -k index_outside")
fault("gradient-of-a-narrow-table-summed-narrow", "ops/index.py",
      'pick(change.astype("float32"), ids).astype(table.dtype)', "pick(change, ids)",
      "models/test_transformer_lm.py::test_a_frequent_words_gradient_is_not_lost_in_bfloat16")
fault("a-look-up-takes-the-dearer-way", "lower/lookup.py",
      "is_less = by_ids[1] < by_table[1]", "is_less = by_ids[1] > by_table[1]", "ops/test_take_stored.py")
fault("stored-columns-come-together-major-first", "lower/lookup.py",
      "minor_first = reversed(runs)", "minor_first = runs", "ops/test_take_stored.py")
fault("ids-that-share-an-axis-are-summed-twice", "lower/lookup.py",
      "self.partial = tuple(axis for axis in self.axes if axis not in sent)", "self.partial = self.axes",
      "ops/test_take_one_axis.py")
fault("an-exported-model-has-experts-that-are-padding", "interop/mapping.py",
      "itertools.product(*(range(dim.count) for dim in self.counted))",
      "itertools.product(*(range(dim.size) for dim in self.counted))", "models/test_padded_sizes.py -k exported")
fault("one-hot-compares-with-local-places", "ops/index.py",
      "local = local_ids(a, size, meeting.axes([dim]))", "local = local_ids(a, size, ())",
      _CONTRACT.format("index"))
fault("scatter-takes-negative-ids-from-the-end", "ops/scatter.py",
      "jnp.where((ids >= 0) & (ids < size), ids, size)", "jnp.where(ids < size, ids, size)",
      "ops/test_order.py -k index_outside", _CONTRACT.format("scatter"))
fault("scatter-adds-narrow-floats-narrow", "ops/scatter.py",
      'kind = as_dtype("float32" if is_narrow else x.dtype)', "kind = as_dtype(x.dtype)",
      "ops/test_order.py -k at_an_index_in_float32")
fault("scatter-forgets-the-sum-over-split-ids", "ops/scatter.py",
      "meeting.region, partial=meeting.axes(own))", "meeting.region)",
      _CONTRACT.format("scatter"))
fault("gather-sends-the-larger-side", "ops/scatter.py",
      "        <= found_elements * x.dtype.itemsize", "        > found_elements * x.dtype.itemsize",
      "ops/test_exchanges_order.py -k reading_few")

# order

fault("argmax-takes-the-last-of-ties", "ops/order.py",
      "along.dim.size)\n    return along.drop(all_min(place", "-1)\n    return along.drop(all_max(place",
      "ops/test_order.py -k places_of_extremes")
fault("argmax-does-not-see-nan", "ops/order.py",
      "is_here = (value == extreme) | ((value != value) & (extreme != extreme))", "is_here = value == extreme",
      "ops/test_order.py -k places_of_extremes")
fault("places-of-the-k-largest-are-local", "ops/order.py",
      "all_gather_equal(places + along.start(), along.axes, at)", "all_gather_equal(places, along.axes, at)",
      "ops/test_order.py -k long_slices")
fault("cumsum-carries-the-neighbour-alone", "ops/order.py",
      "before = scan(_totals(running, along, reverse), axis=0)", "before = _totals(running, along, reverse)",
      _CONTRACT.format("order"))
fault("reverse-cumsum-carries-from-the-wrong-end", "ops/order.py",
      "here = along.ways - 1 - here if reverse else here", "here = along.ways - 1 - here if not reverse else here",
      _CONTRACT.format("order"))
fault("cummax-forgets-the-slices-before-at-ties", "ops/order.py",
      "return ~(a <= b) & (b == b)  # NaN", "return ~(a < b) & (b == b)  # NaN",
      "ops/test_order.py -k gradient_of_ties")
fault("a-merge-keeps-the-lower-half-in-every-run", "ops/order.py",
      "keeps_low = ((here & hop) == 0) == ((here & run) == 0)", "keeps_low = (here & hop) == 0",
      "ops/test_order.py -k merging")
fault("a-merge-orders-ties-by-local-places", "ops/order.py",
      'places = lax.broadcasted_iota("int32", slices.shape, at) + along.start()',
      'places = lax.broadcasted_iota("int32", slices.shape, at) + along.start() * 0',
      "ops/test_order.py -k 'merging or zeros_in_order'")
fault("prefixes-join-this-slices-own-total", "ops/prefixes.py",
      "jnp.maximum(index(taken) - 1, 0)", "jnp.maximum(index(taken), 0)",
      _CONTRACT.format("prefixes"))
fault("prefixes-of-the-first-slice-have-a-second-gradient", "ops/prefixes.py",
      "return jnp.where(is_first, lax.stop_gradient(array), array)", "return array",
      "ops/test_order.py -k joined_before")

# random numbers

fault("random-bits-are-drawn-per-slice", "ops/random.py",
      '* jnp.uint32(sizes[position])', '* jnp.uint32(0)',
      "ops/test_meanings.py -k random_bits")
fault("random-bits-depend-on-padding", "ops/random.py",
      "counts = [dim.count *", "counts = [dim.size *",
      "ops/test_uneven.py -k changes_no_value")
fault("random-bits-of-many-forget-the-high-word", "ops/random.py",
      'high = high + (total < here).astype("uint32")', "high = high + 0",
      "ops/test_uneven.py -k two_words")
fault("dropout-does-not-scale", "ops/random.py",
      "cast(x / keep, x.dtype)", "cast(x, x.dtype)",
      "ops/test_meanings.py -k dropout")

# windows, and moving along a dim

fault("the-last-slice-sends-no-halo", "lower/exchange.py",
      "if wraps or 0 <= i + hop.by < ways]", "if wraps or 0 <= i + hop.by < ways - 1]",
      "ops/test_halos.py -k 'convolution_under_a_layout or kernel_of_3'")
fault("a-window-with-a-fill-wraps-round", "lower/exchange.py",
      "is_there = (index(axes) + hop.by >= 0) & (index(axes) + hop.by < ways)",
      "is_there = index(axes) + hop.by >= 0",
      "ops/test_halos.py -k 'pools or pads'", _CONTRACT.format("moving"))
fault("a-transfer-stands-one-place-off-at-the-end-of-a-slice", "lower/exchange.py",
      "shifts = [p.offset - (p.start - min(p.start, own - length)) for p in known]",
      "shifts = [p.offset for p in known]",
      _CONTRACT.format("moving"), "ops/test_halos.py -k alike")
fault("same-padding-begins-one-later", "lower/halos.py",
      "+ reach - dim.size, 0) // 2, size)", "+ reach - dim.size + 1, 0) // 2, size)",
      "ops/test_halos.py::test_a_convolution_under_a_layout_is_that_of_lax", _CONTRACT.format("conv"))
fault("a-window-gets-rows-it-does-not-look-at", "lower/halos.py",
      "if self.dilation == 1 and self.stride <= self.reach:", "if self.dilation == 1:",
      "ops/test_moving.py -k gaps")
fault("average-pool-counts-its-pads", "ops/pool.py",
      "return jnp.minimum(first + s.reach, s.dim.size) - jnp.maximum(first, 0)", "return first * 0 + s.reach",
      "ops/test_halos.py -k 'pads_are_never'", _CONTRACT.format("conv"))
fault("max-pool-pads-with-zero", "ops/pool.py",
      "seen = view.halos(x, fill=least)", "seen = view.halos(x)",
      "ops/test_halos.py -k 'pads_are_never or pools_under'")
fault("upsampling-keeps-the-edge-of-one-end", "ops/pool.py",
      "here == view.ways(s) - 1, lax.slice_in_dim(inner, -1", "here == view.ways(s), lax.slice_in_dim(inner, -1",
      "ops/test_halos.py -k upsampling_under", _CONTRACT.format("conv"))
fault("a-transposed-convolution-pads-the-other-side", "ops/conv.py",
      "low = reach - 1 if stride > reach - 1 else -(-total // 2)",
      "low = reach - 1 if stride > reach - 1 else total // 2",
      "ops/test_halos.py -k 'transposed_convolution_under'", _CONTRACT.format("conv"))
fault("a-convolution-forgets-the-sum-over-channels", "ops/conv.py",
      "partial = () if self.is_depthwise else placed.axes([self.channels_in])", "partial = ()",
      "ops/test_halos.py -k 'split_input_channels or is_that_of_lax'", _CONTRACT.format("conv"))
fault("attention-in-blocks-sees-beyond-the-image", "nn/block_attention.py",
      "mask = Mask(segments=wf.ones([], dtype=\"int32\"), memory_segments=there)", "mask = Mask()",
      "nn/test_block_attention.py -k place_sees")
fault("dice-counts-what-has-no-weight", "nn/dice.py",
      "for x in (common, both))", "for x in (common, both / weights))",
      "nn/test_conv.py -k dice")
fault("a-unet-halves-what-does-not-divide", "models/unet.py",
      "multiple = ways << (levels - 1)", "multiple = 1 << (levels - 1)",
      "models/test_unet.py -k divide_over_processors")
fault("concat-joins-at-local-places", "ops/slicing.py",
      "places(name, left.dims, axes, a.shape[position]) < at", "places(name, left.dims, (), a.shape[position]) < at",
      _CONTRACT.format("moving"))
fault("flip-leaves-each-slice-where-it-is", "ops/slicing.py",
      "[(i, along.ways - 1 - i) for i in builtins.range(along.ways)]", "[(i, i) for i in builtins.range(along.ways)]",
      _CONTRACT.format("moving"))
fault("shift-brings-padding-in", "ops/slicing.py",
      "if _is_number(along.x, fill) and not (along.dim.is_padded and by < 0):", "if _is_number(along.x, fill):",
      "ops/test_uneven.py -k 'changes_no_value or does_not_matter'", _CONTRACT.format("uneven"))
fault("update-past-the-end-is-lost", "ops/slicing.py",
      "first = _clip(at, there - stretch) - first_place(axes, own)",
      "first = _clip(at, there) - first_place(axes, own)",
      "ops/test_moving.py -k past_an_end")
fault("a-slice-from-a-traced-start-runs-past-the-end", "ops/slicing.py",
      "start = _clip(start, along.dim.count - size)", "start = _clip(start, along.dim.count)",
      "ops/test_moving.py -k past_an_end")
fault("places-over-two-axes-are-counted-over-one", "ops/regroup.py",
      "first = first * region.mesh.axes[axis] + at[axis]", "first = first + at[axis]",
      "ops/test_moving.py -k take_one_each")
fault("a-permute-counts-axes-in-their-own-order", "lower/collectives.py",
      "grid.transpose([ordered.index(axis) for axis in axes]).reshape(-1)", "grid.reshape(-1)",
      _CONTRACT.format("moving"), "ops/test_halos.py", "properties/test_random_programs.py")
fault("the-sign-of-a-zero-is-lost-on-the-way", "lower/collectives.py",
      "if not axes or not jnp.issubdtype(array.dtype, jnp.inexact):\n        return send(array)",
      "if axes or not jnp.issubdtype(array.dtype, jnp.inexact):\n        return send(array)",
      "ops/test_dtypes.py")
fault("a-nan-with-a-sign-loses-a-maximum", "lower/collectives.py",
      "lax.bitcast_convert_type(jnp.where(jnp.isnan(wide), jnp.full_like(wide, jnp.nan), wide), integer)",
      "lax.bitcast_convert_type(wide, integer)",
      "ops/test_order.py -k nan_with_a_sign", "ops/test_meanings.py -k nan")

# loops, maps, gradients of one's own

fault("a-gradient-of-ones-own-is-given-to-every-copy", "ops/custom.py",
      "return jnp.where(index(axes) == 0, gradient, jnp.zeros_like(gradient))", "return gradient",
      "ops/test_custom.py -k does_not_depend")
fault("a-gradient-of-ones-own-flows-to-padding", "ops/custom.py",
      "slice = fill(gradient.raw.astype(array.dtype), slot.dims, placement(gradient), 0)",
      "slice = gradient.raw.astype(array.dtype)",
      "ops/test_control_in_vmap.py -k gradient_of_ones_own")
fault("remat-recomputes-nothing", "ops/remat.py",
      "return jax.checkpoint(run, policy=policy)(values)", "return run(values)",
      "program/test_work.py -k recomputation", "program/test_memory.py -k recomputing")
fault("remat-keeps-nothing-by-name", "ops/remat.py",
      "policy = _policy(kept, on_host) if save else None", "policy = None",
      "program/test_work.py -k by_name")
fault("accumulate-loses-the-slope-of-its-weight", "ops/accumulate.py",
      "return ([a if b is None else a + b for a, b in zip(of_sum, of_weight, strict=True)],)", "return (of_sum,)",
      _CONTRACT.format("control"), "ops/test_control_in_vmap.py -k 'microbatches or accumulate'")
fault("pipeline-leaves-microbatches-a-slot-from-home", "ops/pipeline.py",
      "array = jnp.roll(x.raw, -((flow.ways - 1) % flow.slots), axis=0)", "array = x.raw",
      "ops/test_pipeline.py -k split_stages")
fault("pipeline-counts-extras-of-its-bubble", "ops/ticks.py",
      "extras = [choose(number - place == done, a, jnp.zeros_like(a)) for a in extras]", "pass",
      "ops/test_pipeline.py -k split_stages")
fault("pipeline-idles-on-zeros", "ops/ticks.py",
      "idle = [lax.stop_gradient(x.raw) for x in begun]", "idle = [jnp.zeros_like(x.raw) for x in begun]",
      "ops/test_pipeline.py -k split_stages")
fault("microbatches-share-random-numbers", "ops/random.py",
      "here = here * jnp.uint32(dealt.count) + number", "here = here * jnp.uint32(dealt.count)",
      "ops/test_pipeline.py -k random_numbers")
fault("pipeline-sums-gradients-at-each-tick", "ops/pipeline.py",
      "return with_marks(vary_before_loop(w, over), marks)", "return with_marks(w, marks)",
      "models/test_pipeline.py -k summed_once")
fault("accumulate-adds-narrow-sums-narrow", "ops/accumulate.py",
      'x.local_array.astype(jnp.promote_types(x.dtype, "float32"))', "x.local_array",
      "ops/test_control_in_vmap.py -k short_floats")
fault("scan-in-reverse-goes-forward", "ops/control.py",
      '"length": dim.size, "reverse": reverse', '"length": dim.size, "reverse": False',
      _CONTRACT.format("control"))
fault("rows-that-are-done-go-on", "ops/control.py",
      "jnp.where(as_varying(is_on, varying(new)), new, old) for new, old", "new for new, old",
      "ops/test_control_in_vmap.py -k 'end_it_at_different or in_a_map_does_not'")
fault("the-branch-not-taken-has-a-gradient", "ops/branches.py",
      "return jnp.where(as_varying(is_on, varying(array)), array, lax.stop_gradient(array))", "return array",
      "ops/test_control_in_vmap.py -k 'branch or in_a_map_does_not'")
fault("local-forgets-what-it-is-to-sum", "ops/local.py",
      "meeting.region, partial=meeting.axes(gone))", "meeting.region)",
      "ops/test_local_kernels.py -k added_up_once", _CONTRACT.format("control"))
fault("a-gradient-flows-into-padding", "lower/padding.py",
      "return primals[0], fill(tangents[0], dims, placement, 0)", "return primals[0], tangents[0]",
      "ops/test_uneven.py -k 'changes_no_value or does_not_matter'", "ops/test_control_in_vmap.py -k padding")
fault("a-weight-is-summed-at-each-use", "lower/meet.py",
      "    if not is_kept(x):\n        with operand_scope(i):", "    if is_kept(x):\n        with operand_scope(i):",
      "spmd/test_what_is_sent.py -k 'three_times or scan'")
fault("gradient-sums-travel-as-they-are", "lower/sums.py",
      "return collectives.all_reduce(array.astype(dtype), axes)", "return collectives.all_reduce(array, axes)",
      "spmd/test_what_is_sent.py -k dtype_asked_for")
fault("a-sum-over-hosts-is-transposed-step-by-step", "lower/collectives.py",
      "    if not jnp.issubdtype(array.dtype, jnp.inexact):\n        return total(array)", "    return total(array)",
      "program/test_ledger.py -k between_hosts")
fault("slices-lie-in-the-order-of-levels", "lower/levels.py",
      "array = _reorder(array, position, [axes.index(axis) for axis in axes_of(steps)])", "pass",
      "lower/test_levels.py -k slices_lie")
fault("hosts-are-scattered-to-before-what-is-inside-them", "lower/levels.py",
      "for level in reversed(region.mesh.levels))", "for level in region.mesh.levels)",
      "program/test_ledger.py -k 'between_hosts or hosts_and_pods'")
fault("one-infinity-sets-the-scale-of-its-block", "lower/sums.py",
      "jnp.where(is_finite, jnp.abs(numbers), 0)", "jnp.abs(numbers)",
      "lower/test_sums.py -k not_finite")
fault("float8-is-scaled-beyond-its-largest-number", "lower/sums.py",
      "exponent + 1 - _reach(dtype)", "exponent - 1 - _reach(dtype)",
      "lower/test_sums.py -k as_near_as")
fault("a-shared-table-is-scattered-at-each-use", "lower/stored.py",
      "if not is_gathered or not leaving & over or not is_differentiated(x.raw):", "if True:",
      "spmd/test_storage.py -k several_ops")
fault("what-is-gathered-ahead-has-no-gradient", "lower/fetch.py",
      "jax.vjp(gather, operand)[1](gradient)[0]", "jax.tree.map(jax.numpy.zeros_like, operand)",
      "ops/test_prefetch.py -k 'sends_what_it_did and plain'")
fault("a-turn-gathers-what-it-has-already", "ops/prefetch.py",
      "self._slices(xs, turn + 1)", "self._slices(xs, turn)",
      "ops/test_prefetch.py -k 'sends_what_it_did and plain'")
fault("layers-stay-gathered-for-the-backward-pass", "ops/prefetch.py",
      "if any(uses_inputs(keep_results(self._program, [i]))[before : before + len(carry)]):", "if True:",
      "ops/test_prefetch.py -k keeps_no_layer")
fault("a-loop-may-turn-differently-on-each-processor", "lower/predicates.py",
      "if differing and (branches is None or", "if differing and (branches is not None and",
      "errors/test_control.py")

# ---- the border

fault("parameters-are-put-as-they-are-used", "spmd/place.py",
      "wanted = sharding_of(leaf.dims, leaf.kind.store, region)", "wanted = sharding_of(leaf.dims, None, region)",
      "spmd/test_border.py -k 'put_places or optimizer_state'", "spmd/test_storage.py -k sharded_as")
fault("padding-comes-out", "spmd/place.py",
      "return array[leaf.dims.values] if is_tensor(leaf) and leaf.dims.is_padded else array", "return array",
      "spmd/test_values.py -k padding")
fault("gradients-of-copies-are-not-summed", "spmd/gradients.py",
      "gradient = all_reduce(gradient, tuple(sorted(x.kind.equal)))",
      "gradient = all_reduce(gradient, tuple(sorted(x.kind.equal))[1:])",
      "spmd/test_border.py -k 'gathered'")
fault("the-update-is-done-whole-by-all", "spmd/update.py",
      'for store in ("params", "optimizer"))', 'for store in ("params", "params"))',
      "program/test_update.py", "spmd/test_what_is_sent.py -k optimizer_state")
fault("what-is-static-is-not-in-the-key", "spmd/border.py",
      "key = skeleton, tuple(", "key = skeleton.structure, tuple(",
      "spmd/test_border.py -k another_static")
fault("a-donated-state-is-used-again", "spmd/step.py",
      "        if self._may_be_on_many and has_given_up(held.arrays):\n", "        if not held.arrays:\n",
      "spmd/test_leaves.py -k donated_state")
fault("an-array-is-given-up-twice", "spmd/arguments.py",
      "if len(set(gone)) < len(gone):", "if len(set(gone)) < 0:",
      "spmd/test_border.py -k donated", "errors/test_regions.py", "errors/test_wrong_inputs.py")
fault("arrays-shared-in-a-state-are-given-up-twice", "spmd/step.py",
      "return unshare(state) if self.donate else state", "return state",
      "spmd/test_leaves.py", "spmd/test_border.py")
fault("what-a-function-closes-over-is-not-looked-at", "spmd/cache.py",
      "values += [_content(cell) for name, cell in cells if name not in bound]",
      "values += [name for name, _ in cells]",
      "spmd/test_leaves.py -k names_something_else")
fault("checks-raise-in-the-first-call-alone", "spmd/running.py",
      "self._has_checks = self._has_checks or failures.checks_traced > before",
      "self._has_checks = failures.checks_traced > before",
      "ops/test_debug.py")
fault("plain-functions-look-along-slices", "spmd/guard.py",
      "            if check.offence:\n", "            if not check:\n",
      "spmd/test_guard.py -k refused_by")
fault("what-leaves-is-joined-in-another-order", "spmd/leaving.py",
      "placed[position] = placed[position] + excess", "placed[position] = excess + placed[position]",
      "spmd/test_border.py -k 'gathered_tensor_may_leave'", _CONTRACT.format("move"))
fault("the-step-does-not-count", "spmd/step.py",
      "TrainState(params, optimizer, state.step + 1)", "TrainState(params, optimizer, state.step)",
      "spmd/test_border.py -k training_is_the_same", "spmd/test_leaves.py", "train/test_resume.py -k another_mesh")
fault("metrics-of-ones-own-hide-the-loss", "spmd/step.py",
      'return {**more, "loss": value}', 'return {"loss": value, **more}',
      "spmd/test_border.py -k metrics_hold")
fault("a-batch-placed-once-is-taken-as-placed", "spmd/step.py",
      "(self._batches.get(form) == shardings and", "(form in self._batches and",
      "spmd/test_partition.py")
fault("what-a-region-inside-gives-stays-where-it-was", "spmd/border.py",
      "return _move(results, outer)", "return results",
      "spmd/test_border.py -k another_layout_inside")
fault("rules-that-match-nothing-pass", "spmd/border.py",
      "            region.check_all_rules_matched()\n            out_specs", "            out_specs",
      "errors/test_layouts.py")

fault("a-float8-scale-is-that-of-a-slice", "lower/float8.py",
      "all_max(largest, axes) /", "largest /",
      "ops/test_float8.py -k layout")
fault("a-float8-gradient-is-scaled-by-the-operands-axes", "lower/float8.py",
      "BACKWARD, self.axes[2])", "BACKWARD, ())",
      "ops/test_float8.py -k all_reduce")
fault("a-float8-gradient-has-the-forward-format", "lower/float8.py",
      "result, BACKWARD)", "result, FORWARD)",
      "ops/test_float8.py -k gradients")

# ---- what reads programs

fault("a-maximum-is-no-collective", "primitives.py",
      '_rows(Role.COLLECTIVE, "pmax", does', '_rows(Role.OTHER, "pmax", does',
      "program/test_reasons.py -k softmax", "program/test_ledger.py")
fault("a-loop-inside-a-loop-counts-once", "graph.py",
      "count=around.count * (loop.turns or 1),", "count=loop.turns or 1,",
      "program/test_ledger.py -k loops_inside")
fault("a-loop-of-unknown-length-is-forgotten-inside", "graph.py",
      "is_each_turn=around.is_each_turn or row.kind is Role.WHILE", "is_each_turn=row.kind is Role.WHILE",
      "program/test_ledger.py -k unknown_length")
fault("a-branch-counts-its-smaller-side", "graph.py",
      "[max(step.bodies, key=larger)]", "[min(step.bodies, key=larger)]",
      "program/test_ledger.py -k larger_branch")
fault("what-is-recomputed-is-called-backward", "compat.py",
      'return "recompute" if _REMATTED in scopes[at:] else "backward"', 'return "backward"',
      "program/test_ledger.py -k recomputation")
fault("a-gather-counts-what-it-is-given", "graph.py",
      'self.eqn.outvars if self.collective == "all_gather" else self.eqn.invars', "self.eqn.invars",
      "program/test_ledger.py -k payload", "program/test_exact.py")
fault("an-all-reduce-goes-round-once-on-the-wire", "program/ledger.py",
      'return 2 * sent if self.collective == "all_reduce" else sent', "return sent",
      "program/test_ledger.py -k wire")
fault("axes-of-size-one-send", "program/ledger.py",
      "    if ways == 1:\n        return []\n    site", "    site",
      "program/test_ledger.py -k size_one")
fault("what-goes-over-two-axes-counts-for-none", "program/ledger.py",
      "(axis is None or axis in row.axes)", "(axis is None or (axis,) == row.axes)",
      "program/test_ledger.py -k two_axes")
fault("a-gradient-of-all-examples-has-another-reason", "program/reasons.py",
      "data += reading.mapped_dims(entry)", "data += []",
      "program/test_reasons.py -k every_example")
fault("an-update-gathers-what-is-left-after-all-dims", "program/update.py",
      "size = _local_bytes(aval, tuple(split), mesh_axes)", "size = _local_bytes(aval, want, mesh_axes)",
      "program/test_ledger.py -k two_dims")
fault("a-convolution-multiplies-its-spread-out-zeros", "primitives.py",
      "* numbers // dilation\n", "* numbers\n",
      "program/test_work.py -k no_zeros")
fault("the-work-of-an-update-is-that-of-whole-arrays", "program/work.py",
      "            return flops // _split_ways(step.eqn, self._reading.mesh.axes)\n", "            return flops\n",
      "program/test_work.py -k update")
fault("work-of-mapped-rows-is-called-repeated", "program/work.py",
      ".union(entry.taken)", "",
      "program/test_work.py")
fault("a-loops-own-memory-is-left-out-of-the-peak", "program/memory_course.py",
      "            now += inner[0]\n", "            now += 0\n",
      "program/test_memory.py -k 'loop_is_what or adds_up'")
fault("donated-arguments-are-kept-to-the-end", "program/memory.py",
      "kept=[not is_gone for is_gone in donated]", "kept=[True for _ in donated]",
      "program/test_memory.py -k 'donated or writes_its_state'")
fault("memory-of-split-arguments-is-that-of-the-whole", "program/liveness.py",
      "shape[dim] = -(-shape[dim] // math.prod(self.mesh_axes.get(axis, 1) for axis in axes))",
      "shape[dim] = -(-shape[dim] // max(len(axes), 1))",
      "program/test_memory.py")
fault("what-is-folded-does-not-keep-its-operands", "program/memory_course.py",
      "value.last = max(value.last, last)", "value.last = max(value.last, 0)",
      "program/test_memory.py")
fault("folded-layers-have-the-time-of-the-first", "program/lines.py",
      "doers=frozenset().union(*(line.doers for line in lines))", "doers=lines[0].doers",
      "plan/test_profiled.py -k stands_for")
fault("collectives-beside-kernels-are-waited-for", "program/step_times.py",
      "shown = next((found for found in running[::-1] if found), ())", "shown = set().union(*running)",
      "program/test_step_times.py")
fault("the-last-step-has-no-time-after-it", "program/step_times.py",
      "(starts[0], starts[-1], len(starts) - 1) if len(starts) > 1", "(starts[0], ends[-1], len(starts)) if starts",
      "program/test_step_times.py")
fault("a-fused-kernel-is-its-last-op-alone", "program/compiled.py",
      "for part in self.parts if names_op(part.scopes)] or", "for part in self.parts[-1:] if names_op(part.scopes)] or",
      "program/test_step_times.py -k fused")
fault("a-profile-of-other-sizes-is-taken", "plan/profiled.py",
      "if dtype and shape not in shapes:", "if not dtype and shape not in shapes:",
      "plan/test_profiled.py -k sizes")
fault("few-rows-fill-a-whole-tile-of-a-tpu", "program/liveness.py",
      "next((rows for rows in (1, 2, 4) if height <= rows), -(-height // 8) * 8)", "-(-height // 8) * 8",
      "program/test_memory.py -k tiles")

# ---- plans

fault("a-loop-of-a-tpu-counts-one-turn", "plan/sent.py",
      "return max(last - ((_number(first) if first is not None else None) or 0), 0)", "return 1",
      "plan/test_compile.py -k counted_by_its_test")
fault("a-recomputed-gather-is-merged", "plan/merged.py",
      "step.instruction, id(step.remat), tuple", "step.instruction, tuple",
      "plan/test_compile.py -k recomputation")
fault("a-compilers-message-is-cut", "plan/compile.py",
      "failed: {_whole(said, machine)}", "failed: {said.splitlines()[-1]}",
      "plan/test_compile.py -k comes_through_whole")
fault("a-drawn-ring-turns-the-other-way", "schedule.py",
      "return (place - turn) % self.ways", "return (place + turn) % self.ways",
      "plan/test_page.py -k turn_by_turn", "test_schedule.py")
fault("latency-is-dropped", "plan/links.py",
      "return calls + sum(link.latency * steps for link, steps, _ in parts), a_byte", "return calls, a_byte",
      "plan/test_links.py -k 'ring or collectives'")
fault("between-hosts-go-all-bytes", "plan/links.py",
      "bytes_sent = (at.ways - 1) / at.ways / at.sharing\n        parts.append((at.link, rounds",
      "bytes_sent = (at.ways - 1) / at.ways\n        parts.append((at.link, rounds",
      "plan/test_links.py -k 'slower_of_its_links'")
fault("a-torus-uses-one-side", "plan/links.py",
      "return sum(at.link.rate * (1.0 if side.is_ring", "return max(at.link.rate * (1.0 if side.is_ring",
      "plan/test_links.py -k torus")
fault("a-line-is-as-fast-as-a-ring", "plan/links.py",
      "(1.0 if side.is_ring else 0.5) / side.stride", "1.0 / side.stride",
      "plan/test_links.py -k line")
fault("small-sums-go-around-rings", "plan/links.py",
      "lines += [_tree(crossings), _tree(crossings, in_switches=True)]", "pass",
      "plan/test_links.py -k tree")
fault("hosts-are-filled-to-a-divisor", "plan/placement.py",
      "return alike if link.is_torus or alike > _FILLED * link.reach else link.reach", "return alike",
      "plan/test_links.py -k rack")
fault("of-groups-the-first-counts", "plan/placement.py",
      "int(in_group.max())", "int(in_group[0])",
      "plan/test_links.py -k 'lie_differently or numbers_say'")
fault("a-bar-ends-nothing", "plan/placement.py",
      "bars = [size for size in inside if size < count]", "bars = list[int]()",
      "plan/test_links.py -k bar_in")
fault("a-bit-of-a-network-is-a-byte", "plan/hardware_file.py",
      "GBIT, TERA = 1e9, 1e6, 2**30, 1e9 / 8, 1e12", "GBIT, TERA = 1e9, 1e6, 2**30, 1e9, 1e12",
      "plan/test_hardware_file.py -k vendors")
fault("a-misspelt-figure-is-passed-over", "plan/hardware_file.py",
      "if unknown := next((key for key in table if key not in known), None):", "if unknown := None:",
      "plan/test_hardware_file.py -k is_wrong")
fault("a-kernel-takes-the-shorter-of-two", "plan/roofline.py",
      "found = max(moving, computing) + kernel.calls * hardware.call\n    if kernel.calls",
      "found = min(moving, computing) + kernel.calls * hardware.call\n    if kernel.calls",
      "plan/test_cost.py -k 'thin_product or as_its_flops'")
fault("what-goes-on-beside-costs-nothing", "plan/cost.py",
      "shown = took * (left[kernel.body, kernel.is_ahead] if kernel.is_beside else 1.0)",
      "shown = took * (0.0 if kernel.is_beside else 1.0)",
      "plan/test_cost.py -k 'nothing_waits_for'")
fault("useful-work-has-what-is-recomputed", "plan/cost.py",
      "useful = program.flops_useful * (1 - again)", "useful = program.flops_useful * (1 + 0 * again)",
      "plan/test_cost.py -k no_use")
fault("a-loop-in-a-loop-costs-its-own-turns", "plan/values.py",
      "turn = Routine(routine.count * (loop.turns or 1), is_turn=True, is_looped=True)",
      "turn = Routine(loop.turns or 1, is_turn=True, is_looped=True)",
      "plan/test_cost.py -k turns")
fault("a-search-bound-is-above-the-cost", "plan/best_first.py",
      "bound = self.candidates.seconds[candidate] * self.slack",
      "bound = self.candidates.seconds[candidate] / self.slack",
      "plan/test_search.py -k slack")
fault("a-trace-below-its-bound-widens-nothing", "plan/best_first.py",
      "self.slack = min(self.slack, result.seconds / bound)",
      "self.slack = min(self.slack, 1.0)",
      "plan/test_search.py -k slack")
fault("the-best-need-not-fit", "plan/best_first.py",
      "if ranked.fits and (self.best is None", "if (self.best is None",
      "plan/test_search.py -k 'ends_no_search or memory'")
fault("work-left-on-a-larger-axis-is-that-of-the-traced-one", "plan/clusters.py",
      "* (1 - 1 / size), 0.0))", "* (1 - 1 / 4), 0.0))",
      "plan/test_search.py -k another_size")
fault("stored-weights-are-not-divided-in-memory", "plan/compose.py",
      ' or is_stored', "",
      "plan/test_search.py -k memory")
fault("causal-attention-computes-all-scores", "plan/attention.py",
      "return (tiles + 1) / (2 * tiles)", "return 1.0",
      "plan/test_cost.py -k diagonal")

fault("gradients-of-a-ring-stay-one-hop-from-home", "ops/ring.py",
      "d_kv = self._send(d_kv + own, -self.hops)", "d_kv = d_kv + own",
      "nn/test_ring.py -k 'one_processor or once_forward'")
fault("a-ring-forgets-the-sums-of-a-smaller-score", "ops/blockwise.py",
      "shares = state.shares * old + share", "shares = state.shares + share",
      "nn/test_ring.py -k 'one_processor or plain_jnp'")
fault("dropout-of-a-block-begins-at-the-first-place", "ops/blockwise.py",
      "return as_varying((start + jnp.arange", "return as_varying((start * 0 + jnp.arange",
      "nn/test_ring.py -k one_processor")
fault("two-keys-of-a-group-draw-one-bit", "kernels/counter.py",
      "word << 16, word) <", "word, word) <",
      "kernels/test_counter.py")
fault("blocks-on-the-diagonal-are-left-out", "kernels/blocks.py",
      "before, all_before = k_low <= q_high,", "before, all_before = k_high <= q_low,",
      "kernels/test_flash.py -k 'bounds or visited'")
fault("a-soft-cap-has-a-slope-of-one", "kernels/tiles.py",
      "1 - capped * capped", "1 + 0 * capped",
      "kernels/test_flash.py -k softcap")
fault("a-kernel-forgets-the-sums-of-a-smaller-score", "kernels/passes.py",
      "total * old[:, None], shares * old", "total, shares",
      "kernels/test_flash.py -k 'agree and dropout'")
fault("gradients-of-dropped-shares-come-through", "kernels/passes.py",
      "d_share = jnp.where(kept, d_share, 0.0)", "pass",
      "kernels/test_flash.py -k 'agree and dropout'")
fault("a-bias-has-the-gradient-of-one-row", "kernels/passes.py",
      "turns = batch // rows * shared", "turns = shared",
      "kernels/test_flash.py -k 'agree and bias'")
fault("a-key-that-is-not-seen-keeps-its-score", "kernels/cudnn.py",
      "jnp.where(see(*places), jnp.zeros((), dtype), jnp.asarray(UNSEEN, dtype))",
      "jnp.where(see(*places), jnp.zeros((), dtype), jnp.zeros((), dtype))",
      "nn/test_fused.py -k fused_kernel")
fault("a-query-that-sees-none-has-a-gradient", "kernels/cudnn.py",
      "if see is not None and may_see_none:", "if False:",
      "nn/test_fused.py -k fused_kernel")
fault("a-kernel-counts-queries-of-a-slice-from-the-first", "nn/fused.py",
      'here.start("length") if case.is_offset else 0', "0",
      "nn/test_fused.py -k fused_kernel")
fault("a-kernel-drops-by-the-local-head", "nn/fused.py",
      '"heads": own.head.reshape(-1)}', '"heads": jnp.arange(own.head.size, dtype="uint32")}',
      "nn/test_fused.py -k drops_the_same")
fault("a-zigzag-swaps-its-halves", "ops/ring.py",
      "first, last = jnp.where(is_even, even, odd), jnp.where(is_even, odd, even)",
      "first, last = jnp.where(is_even, odd, even), jnp.where(is_even, even, odd)",
      "nn/test_ring.py -k 'one_processor or plain_jnp'")

# ---- training

fault("a-run-goes-on-one-batch-back", "train/trainer.py",
      "run.batches.seek(at + saver.skipped, saver.data)\n    stop.check()",
      "run.batches.seek(max(at - 1, 0) + saver.skipped, saver.data)\n    stop.check()",
      "train/test_resume.py -k 'crashed or another_mesh'")
fault("noise-is-the-same-in-every-step", "train/step.py",
      "key = jax.random.fold_in(_key(config, _NOISE), number)", "key = _key(config, _NOISE)",
      "train/test_optimizers.py -k noise")
fault("shares-of-the-average-are-swapped", "train/step.py",
      "decay * a + (1 - decay) * b", "(1 - decay) * a + decay * b",
      "train/test_optimizers.py -k averaged")
fault("clipping-ignores-the-norm", "train/step.py",
      "x / norm.astype(x.dtype) * clip)", "x * clip)",
      "train/test_optimizers.py -k clipped")
fault("the-scale-of-the-loss-stays-in-gradients", "train/step.py",
      "parts.insert(0, optax.scale(1 / config.train.loss_scale))", "parts.insert(0, optax.identity())",
      "train/test_optimizers.py -k taken_out")
fault("the-scale-of-the-loss-stays-in-the-log", "train/log.py",
      'row["loss"] /= config.train.loss_scale or 1.0', 'row["loss"] /= 1.0',
      "train/test_optimizers.py -k scaled_loss")
fault("microbatches-count-alike-whatever-they-hold", "train/step.py",
      "return value * weight, weight", "return value, weight * 0 + 1", "train/test_optimizers.py -k microbatches")
fault("a-bad-step-changes-the-moments", "train/step.py",
      "lambda a, b: jnp.where(is_good, a, b), new, state.inner)", "lambda a, b: a, new, state.inner)",
      "train/test_nonfinite.py -k bad_step_changes_nothing")
fault("bad-steps-in-a-row-are-all-bad-steps", "train/step.py",
      "(state.in_a_row + 1) * bad", "state.in_a_row + bad",
      "train/test_nonfinite.py -k 'bad_batch or bad_step or in_a_row'")
fault("all-weights-decay", "train/optimizers.py",
      "lambda flag: not flag, matches", "lambda flag: True, matches",
      "train/test_optimizers.py -k decay")
fault("a-second-moment-becomes-zero", "optim.py",
      "(ratio > 0).astype(ratio.dtype)", "0.0",
      "test_optim.py -k code")
fault("blocks-may-be-cut", "optim.py",
      "if size % block:", "if block % size:",
      "test_optim.py -k cut")
fault("the-warm-up-begins-at-zero", "train/optimizers.py",
      "optax.linear_schedule(rate / warmup, rate, warmup - 1)", "optax.linear_schedule(0.0, rate, warmup)",
      "train/test_optimizers.py -k schedule")
fault("the-cosine-ends-after-the-run", "train/optimizers.py",
      "optax.cosine_decay_schedule(rate, rest, config.end)", "optax.cosine_decay_schedule(rate, steps, config.end)",
      "train/test_optimizers.py -k schedule")
fault("evaluation-is-done-as-in-training", "train/evaluation.py",
      "return model.loss_and_metrics(batch)[1]",
      "return model.loss_and_metrics(batch, jax.random.fold_in(jax.random.key(0), number))[1]",
      "train/test_evaluation.py")
fault("a-run-is-judged-by-its-last-weights", "train/evaluation.py",
      "self._evaluate(evaluated_model(state), between=", "self._evaluate(state.params, between=",
      "train/test_evaluation.py -k by_its_average")
fault("batches-of-an-evaluation-count-alike", "train/evaluation.py",
      "return np.array([nll * tokens, hits * tokens, tokens])", "return np.array([nll, hits, 1.0])",
      "train/test_evaluation.py -k counts_once")
fault("bits-a-byte-are-nats", "train/evaluation.py",
      "nll / size / math.log(2)", "nll / size / math.log(math.e)",
      "train/test_evaluation.py")
fault("the-end-of-a-run-is-not-judged", "train/evaluation.py",
      "(at % self._every == 0 or at == self._last)", "(at % self._every == 0)",
      "train/test_evaluation.py -k by_its_average")
fault("the-best-checkpoint-is-removed", "train/checkpoints.py",
      "kept = set(steps[-self.keep :]) | ({self.best_step()} if self.best else set())",
      "kept = set(steps[-self.keep :])",
      "train/test_checkpoint_files.py -k beside_the_last")
fault("the-best-checkpoint-has-the-highest-loss", "train/checkpoints.py",
      "return min(finite, key=lambda step: (finite[step], step))",
      "return max(finite, key=lambda step: (finite[step], step))",
      "train/test_checkpoint_files.py -k beside_the_last")
fault("bits-may-change-places-in-a-checkpoint", "train/checkpoints.py",
      "return jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)", "return jnp.sum(bits + 0 * place, dtype=jnp.uint32)",
      "train/test_checkpoint_files.py -k sum_of_bits")
fault("a-state-gone-wrong-takes-the-place-of-a-good-one", "train/saver.py",
      'if not is_last and read_scalar(optimizer_metrics(state)["bad_in_a_row"]):', "if not is_last and at < 0:",
      "train/test_nonfinite.py -k gone_wrong")
fault("metrics-stand-twice-after-a-restart", "train/metrics.py",
      'return row["step"] <= from_step and not forgets(row)', "return not forgets(row)",
      "train/test_metrics.py -k forgets")
fault("spikes-are-looked-for-one-step-late", "train/spikes.py",
      "is_known = before.seen >= window", "is_known = before.seen > window",
      "train/test_spikes.py -k 'leap or leaps'")
fault("a-rollback-keeps-the-batch-of-the-spike", "train/rollback.py",
      "skipped = spike.step - saver.at\n", "skipped = spike.step - saver.at - 1\n",
      "train/test_spikes.py -k 'rollback_goes_on'")
fault("smoothed-labels-count-more-than-once", "ops/cross_entropy.py",
      "terms.append((1 - self.smoothing) * target + self.smoothing", "terms.append(target + self.smoothing",
      _ENTROPY)
fault("the-z-loss-is-not-squared", "nn/loss.py",
      "loss = loss + z_loss * terms.log_sum * terms.log_sum", "loss = loss + z_loss * terms.log_sum",
      _ENTROPY)
fault("the-slope-of-a-loss-leaves-the-smoothing-out", "ops/cross_entropy.py",
      "of_target = of_target + (1 - self.smoothing) * more[0]", "of_target = of_target + more[0]",
      _ENTROPY)
fault("of-equal-logits-any-is-a-hit", "ops/cross_entropy.py",
      "target, (target == shift_of_row) & (before == 0)]", "target, target == shift_of_row]",
      _ENTROPY)
# fmt: on
