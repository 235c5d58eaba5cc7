"""Lets `lm_eval --model sinkscope` find the bridge.

lm-eval has no plug-in discovery (EleutherAI/lm-evaluation-harness, issue 3282). So `sinkscope_lm_eval.pth` imports this module
when Python starts. All it does is wait for lm-eval's list of models to be imported, and add one line to it; other programs
pay a fraction of a millisecond, and nothing of sinkscope is imported until the model is asked for.
"""

import sys

NAME, TARGET = "sinkscope", "sinkscope.tasks.lm_eval:SinkscopeLM"


class _Waiting:
    """A finder that finds nothing itself; it sees lm_eval.models come by once, and steps aside."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """The spec of lm_eval.models, with our line added behind its own; None for everything else."""
        if name != "lm_eval.models":
            return None
        sys.meta_path.remove(cls)
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                run(module)
                register()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Adds the bridge to lm-eval's models, by name: it is imported when it is asked for."""
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target=TARGET)


def wait() -> None:
    """Waits for lm-eval, or registers at once where it is there already."""
    if "lm_eval.models" in sys.modules:
        register()
    elif _Waiting not in sys.meta_path:
        sys.meta_path.insert(0, _Waiting)


wait()
