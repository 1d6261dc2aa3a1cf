"""Does what the test says line by line, with the SharedMemoryManager of omnibus."""

import json
import sys

from omnibus.connector import SharedMemoryManager

do = {
    "write": SharedMemoryManager.write_metadata,
    "write_object": lambda rid: SharedMemoryManager.write_metadata(rid, {"a": [1, {"b": object()}]}),
    "read": SharedMemoryManager.read_metadata,
    "cleanup": SharedMemoryManager.cleanup,
}
for line in sys.stdin:
    name, *arguments = json.loads(line)
    try:
        answer = do[name](*arguments)
    except Exception as e:
        answer = f"{type(e).__name__}: {e}"
    print(json.dumps(answer), flush=True)
