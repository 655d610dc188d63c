"""What the report says a history keeps, against numbers: the dense oracle beside BPTT."""

import numpy as np
import pytest

from zoo.solved import solved, solved_names


@pytest.mark.parametrize("name", solved_names())
def test_d_rtrl_equals_bptt_just_where_the_report_says_so(name: str) -> None:
    model = solved(name)
    exact = {
        parameter.name: np.allclose(model.online[parameter.index], model.whole[parameter.index], rtol=1e-10, atol=1e-12)
        for parameter in model.graph.parameters
    }
    found = {parameter.name: parameter.history in ("all", "none-needed") for parameter in model.graph.parameters}
    assert exact == found
