"""A Python process that publishes and finds descriptors, as the test says line by line."""

import json
import os
import sys

import omnibus

client = omnibus.connect()
found = {}

for line in sys.stdin:
    q = json.loads(line)
    name, answer = omnibus.Name(bytes.fromhex(q.get("pool", "")), q.get("number", 0)), None
    try:
        if q["do"] == "publish":
            fd = os.memfd_create("published")
            os.write(fd, q["text"].encode())
            client.publish(name, fd, q["size"])
            os.close(fd)
        elif q["do"] == "withdraw":
            client.withdraw(name)
        elif q["do"] == "find":
            f = found[name.number] = client.find(name)
            answer = [os.pread(f.fd, 100, 0).decode(), f.size, f.owner.pid, f.owner.dead]
        elif q["do"] == "wait":
            answer = found[name.number].owner.wait(60)
    except omnibus.HostError as e:
        answer = type(e).__name__
    print(json.dumps({"answer": answer, "errors": {}}), flush=True)
