"""openpi's own client: asks with what standard input says, prints what it got as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def message(values: dict[str, Any]) -> dict[str, Any]:
    """Lists are float64 arrays, numbers the side of a grey picture of that brightness."""
    made: dict[str, Any] = {}
    for key, value in values.items():
        made[key] = np.asarray(value) if isinstance(value, list) else value
        if isinstance(value, int):
            made[key] = np.full((224, 224, 3), value, np.uint8)
    return made


host, port, key = sys.argv[1:]
client = WebsocketClientPolicy(host, int(port), api_key=key or None)
answers = [plain(client.get_server_metadata())]
for values in json.load(sys.stdin):
    try:
        answers.append(plain(client.infer(message(values))))
    except RuntimeError as exc:
        answers.append(str(exc))
        break
print(json.dumps(answers))
