"""hidden_cosine: the cosine of each hidden state with that of the first real token, against hooks of the test's own."""

from __future__ import annotations

import numpy as np
import torch
from tests.helpers.golden import checkpoint

import sinkscope as ss


def test_cosine_with_the_first_real_token() -> None:
    model = ss.load(checkpoint("llada"))
    prompt = torch.randint(0, 470, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 9)
    mask[1, :3] = 0
    run = ss.generate(model, prompt, ss.LladaDecoding(8, 4, 8), attention_mask=mask, capture=ss.Capture(anatomy=True))
    seen: list[torch.Tensor] = []
    hook = model.network.model.layers[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    whole = torch.cat([mask, torch.ones(2, 8)], 1)
    model.logits(run.states[2], whole)
    hook.remove()
    found = run.trace.dataset["hidden_cosine"].sel(step=2, layer=1).values
    for row, first in enumerate((0, 3)):
        hidden = seen[0][row].double().numpy()
        expected = hidden @ hidden[first] / np.linalg.norm(hidden, axis=-1) / np.linalg.norm(hidden[first])
        np.testing.assert_allclose(found[row, first:], expected[first:], atol=1e-5)
        assert np.isnan(found[row, :first]).all()
