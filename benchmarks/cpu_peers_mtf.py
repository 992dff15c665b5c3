"""The language model of `cpu_peers.py` in the original mesh-tensorflow, on 8 virtual processors, 4 x 2.

    python3.9 -m venv mtf && mtf/bin/pip install "tensorflow-cpu==2.11.*" mesh-tensorflow==0.1.21 "numpy<1.24"
    mtf/bin/python benchmarks/cpu_peers_mtf.py --steps 20

For a Python that TensorFlow 2.11 knows; it imports nothing of Weft. Prints JSON: CPU-seconds up to the end of the first
step, imports and all, those of each further step (their median), and the losses.
"""

import argparse
import json
import os
import resource
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf

LAYERS, D, H, K, F, V, B, T = 4, 256, 8, 32, 1024, 8192, 8, 128
RATE = 0.1
MESH, LAYOUT = "x:4;y:2", "batch:x;heads:y;d_ff:y;vocab:y"


def norm(x, name, d_model):
    scale = mtf.get_variable(x.mesh, f"of_{name}", [d_model], initializer=tf.ones_initializer())
    return x * mtf.rsqrt(mtf.reduce_mean(mtf.square(x), reduced_dim=d_model) + 1e-6) * scale


def loss_of(mesh, inputs, targets):
    names = dict(batch=B, length=T, memory=T, d_model=D, heads=H, d_kv=K, d_ff=F, vocab=V)
    batch, length, memory, d_model, heads, d_kv, d_ff, vocab = (mtf.Dimension(n, s) for n, s in names.items())

    def weight(name, *dims, fan=D):
        start = tf.random_normal_initializer(stddev=fan**-0.5, seed=0)
        return mtf.get_variable(mesh, f"of_{name}", list(dims), initializer=start)

    ids = mtf.import_tf_tensor(mesh, inputs, mtf.Shape([batch, length]))
    labels = mtf.import_tf_tensor(mesh, targets, mtf.Shape([batch, length]))
    x = mtf.gather(weight("embedding", vocab, d_model, fan=1), ids, vocab)
    x += weight("positions", length, d_model, fan=2500)
    places = mtf.range(mesh, length, tf.int32), mtf.range(mesh, memory, tf.int32)
    mask = mtf.cast(mtf.less(places[0], places[1]), tf.float32) * -1e9
    for i in range(LAYERS):
        h = norm(x, f"norm_1_{i}", d_model)
        q, k, v = (mtf.einsum([h, weight(f"{n}_{i}", d_model, heads, d_kv)], reduced_dims=[d_model]) for n in "qkv")
        k, v = (mtf.rename_dimension(a, "length", "memory") for a in (k, v))
        scores = mtf.einsum([q, k], reduced_dims=[d_kv]) * K**-0.5 + mask
        mixed = mtf.einsum([mtf.softmax(scores, memory), v], reduced_dims=[memory])
        x += mtf.einsum([mixed, weight(f"o_{i}", heads, d_kv, d_model, fan=H * K)], reduced_dims=[heads, d_kv])
        h = mtf.relu(
            mtf.einsum([norm(x, f"norm_2_{i}", d_model), weight(f"w_1_{i}", d_model, d_ff)], reduced_dims=[d_model])
        )
        x += mtf.einsum([h, weight(f"w_2_{i}", d_ff, d_model, fan=F)], reduced_dims=[d_ff])
    logits = mtf.einsum([norm(x, "norm", d_model), weight("softmax", vocab, d_model)], reduced_dims=[d_model])
    hot = mtf.one_hot(labels, vocab, dtype=tf.float32)
    return mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, hot, vocab))


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    tf.disable_eager_execution()
    tokens = np.random.default_rng(1).integers(0, V, (B, T + 1)).astype("int32")
    inputs, targets = tf.constant(tokens[:, :-1]), tf.constant(tokens[:, 1:])
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    loss = loss_of(mesh, inputs, targets)
    variables = graph.trainable_variables
    slopes = mtf.gradients([loss], [v.outputs[0] for v in variables])
    updates = mtf.optimize.SgdOptimizer(RATE).apply_grads(slopes, variables)
    devices = [f"cpu:{i}" for i in range(8)]
    placed = mtf.placement_mesh_impl.PlacementMeshImpl(MESH, LAYOUT, devices)
    lowering = mtf.Lowering(graph, {mesh: placed})
    whole = lowering.export_to_tf_tensor(loss)
    with tf.control_dependencies([lowering.lowered_operation(update) for update in updates]):
        step = tf.identity(whole)
    config = tf.ConfigProto(device_count={"CPU": 8}, allow_soft_placement=True)
    losses, times = [], []
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        losses.append(float(session.run(step)))
        first = cpu_seconds()
        for _ in range(steps - 1):
            start = time.process_time()
            losses.append(float(session.run(step)))
            times.append(time.process_time() - start)
    found = {"cpu_s": first, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if times:
        found["step_cpu_s"] = statistics.median(times)
    print(json.dumps({**found, "losses": [losses[0], losses[-1]]}))


if __name__ == "__main__":
    main()
