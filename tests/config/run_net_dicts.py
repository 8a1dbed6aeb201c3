"""
Runs net dicts from their source, in a process where returnn_common can't be imported:

    python run_net_dicts.py FOLDER

For each NAME.npz there (inputs ``in/...``, lengths ``size/...``, parameters ``param/...``): NAME.forward.py, if it's
there, is built, gets the parameters, and NAME.out.npz gets what it puts out and the lengths; NAME.train.py, if it's
there, is trained for some steps, and NAME.loss.npz gets the losses.
"""

import contextlib
import gc
import io
import json
import sys
from pathlib import Path

sys.modules["returnn_common"] = None  # importing it raises ImportError

import numpy as np  # noqa: E402
import returnn.tf.compat as tf_compat  # noqa: E402
import tensorflow as tf  # noqa: E402
from returnn.config import Config, global_config_ctx  # noqa: E402
from returnn.tensor import Dim, batch_dim  # noqa: E402
from returnn.tf.network import TFNetwork  # noqa: E402
from returnn.util.basic import BehaviorVersion  # noqa: E402

STEPS = 6


@contextlib.contextmanager
def _network(path: Path, *, train: bool):
    """:return: namespace of the source; network; session"""
    fresh = Dim(None, name=batch_dim.name, kind=Dim.Types.Batch)
    for slot in Dim.__slots__:
        setattr(batch_dim, slot, getattr(fresh, slot))
    namespace: dict = {}
    exec(path.read_text(), namespace)
    BehaviorVersion._reset()
    BehaviorVersion.set(namespace["behavior_version"])
    config = Config({name: value for name, value in namespace.items() if not name.startswith("__")})
    with (
        tf.Graph().as_default(),
        tf_compat.v1.Session() as session,
        global_config_ctx(config),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        gc.disable()  # else TensorFlow may flatten a dict of weak references that a collection shrinks meanwhile
        network = TFNetwork(config=config, train_flag=train)
        network.construct_from_dict(namespace["network"])
        network.initialize_params(session)
        gc.enable()
        yield namespace, network, session


def _load(network, session, data: dict) -> list[str]:
    """:return: variables that got no value"""
    variables = {variable.name.split(":")[0]: variable for variable in network.get_params_list()}
    for name, value in data.items():
        if name.startswith("param/"):
            variables.pop(name[6:].replace(".", "/") + "/param").load(value, session)
    return list(variables)


def _feed(network, data: dict) -> dict:
    feed = {}
    for name, x in network.extern_data.data.items():
        if f"in/{name}" not in data:
            continue
        feed[x.placeholder] = data[f"in/{name}"]
        for dim in x.dims:
            if f"size/{dim.name}" in data:
                feed[dim.dyn_size_ext.placeholder] = data[f"size/{dim.name}"]
    batch = network.extern_data.get_batch_info().dim
    if isinstance(batch, tf.Tensor) and batch.op.type == "Placeholder":
        feed[batch] = len(next(value for name, value in data.items() if name.startswith("in/")))
    return feed


def _forward(path: Path, data: dict) -> dict:
    with _network(path, train=False) as (namespace, network, session):
        rest = _load(network, session, data)
        assert not rest, f"parameters of other names: {rest}"
        found = {}
        for name, layer in namespace["network"].items():
            if layer.get("is_output_layer"):
                output = network.get_layer(name).output.copy_as_batch_major()
                lengths = {i: d.dyn_size_ext.placeholder for i, d in enumerate(output.dims) if i and d.is_dynamic()}
                found[f"{name}/order"] = np.array([d.name for d in output.dims])
                found[name], lengths = session.run((output.placeholder, lengths), _feed(network, data))
                found.update({f"{name}/{axis}": value for axis, value in lengths.items()})
        return found


def _train(path: Path, data: dict) -> list[float]:
    """:return: the loss in each step"""
    with _network(path, train=True) as (_, network, session):
        _load(network, session, data)
        loss = network.get_objective()
        optimizer = tf_compat.v1.train.AdamOptimizer(0.003)
        update = optimizer.minimize(loss, var_list=network.get_trainable_params())
        session.run(tf_compat.v1.variables_initializer(optimizer.variables()))
        return [float(session.run([loss, update], _feed(network, data))[0]) for _ in range(STEPS)]


def main(folder: Path):
    """see above"""
    for path in sorted(folder.glob("*.data.npz")):
        name, data = path.name.removesuffix(".data.npz"), dict(np.load(path))
        if (folder / f"{name}.forward.py").exists():
            np.savez(folder / f"{name}.out.npz", **_forward(folder / f"{name}.forward.py", data))
        if (folder / f"{name}.train.py").exists():
            (folder / f"{name}.loss.json").write_text(json.dumps(_train(folder / f"{name}.train.py", data)))
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
