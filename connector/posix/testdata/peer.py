"""The Python client's end of a store, for the tests of package posix.

It does what a connectortest.Relay asks for, as connectortest.Serve does with a transport of Go.
"""

import json
import os
import sys
import threading
import time

from omnibus.connector import BadKey, BadMetadata, Busy, Damaged, Missing, NoRoom, Unavailable
from omnibus.connector.contract import Edge
from omnibus.connector.encoder import Encoded
from omnibus.connector.posix import Store

FOREVER = 3600


class FillFails(Exception):
    pass


class Unreadable(Encoded):
    """A value that cannot be written."""

    def __init__(self, size):
        self.size = size

    @property
    def pieces(self):
        raise FillFails("the value cannot be written")


class Cancelled(Exception):
    pass


KINDS = {
    BadKey: "key",
    BadMetadata: "metadata",
    Busy: "busy",
    Damaged: "corrupt",
    Missing: "not found",
    NoRoom: "full",
    Unavailable: "unavailable",
    FillFails: "fill",
    Cancelled: "canceled",
}


class Server:
    def __init__(self, options):
        self.store = Store(
            {
                "store": options["Name"],
                "dir": options["Dir"],
                "readers": options["Readers"],
                "ring_bytes": options["Bytes"],
                "timeout": 10,
                "ttl": options.get("TTL", 0),
            }
        )
        self.input, self.output = sys.stdin.buffer, sys.stdout.buffer
        self.sending = threading.Lock()
        self.cancelled = {}

    def serve(self):
        while line := self.input.readline():
            head = json.loads(line)
            payload = self.input.read(head["Size"])
            q = head["Message"]
            if q["Op"] == "cancel":
                threading.Thread(target=self.cancel, args=(q["ID"],)).start()
                continue
            event = self.cancelled[q["ID"]] = threading.Event()
            event.key = q["Key"]
            threading.Thread(target=self.answer, args=(q, payload, event)).start()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        self.store.close()

    def cancel(self, request):
        """End a wait, which may not have begun yet."""
        while event := self.cancelled.get(request):
            event.set()
            self.store.abandon(event.key)
            time.sleep(1e-3)

    def answer(self, q, payload, event):
        reply, value = {"ID": q["ID"]}, b""
        try:
            meta, value = self.do(q, payload, event)
            reply["Meta"] = meta
        except Exception as e:
            reply["Error"] = f"{type(e).__name__}: {e}" or "?"
            reply["Is"] = [name for kind, name in KINDS.items() if isinstance(e, kind)]
            if str(e) == "the connector is closed":
                reply["Is"] = ["closed"]
        self.cancelled.pop(q["ID"], None)
        with self.sending:
            self.output.write(json.dumps({"Message": reply, "Size": len(value)}).encode() + b"\n" + value)
            self.output.flush()

    def do(self, q, payload, event):
        edge, key, meta = Edge(q["Edge"]["From"], q["Edge"]["To"]), q["Key"], q["Meta"]
        if q["Op"] == "put":
            value = Unreadable(len(payload)) if q["Fails"] else Encoded([payload])
            return self.store.put(edge, key, value), b""
        if q["Op"] == "get":
            return None, self.store.get(edge, key, meta, bytes)[0]
        if q["Op"] == "await":
            return None, self.wait(edge, key, meta, event)
        if q["Op"] == "cleanup":
            self.store.cleanup(key)
        elif q["Op"] == "reap":
            self.store.reap()
        else:
            self.store.close()
        return None, b""

    def wait(self, edge, key, meta, event):
        while True:
            try:
                return self.store.wait(edge, key, meta, bytes, time.monotonic() + FOREVER)[0]
            except Missing:
                if event.is_set():
                    raise Cancelled("cancelled") from None
                if meta:
                    raise


Server(json.loads(os.environ["POSIX_TEST_CHILD"])).serve()
