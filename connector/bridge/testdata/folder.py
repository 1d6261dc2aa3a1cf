"""A bridge to a store in a folder, which all processes of a test share. It needs no server and no wheel.

It takes the arguments of python -m omnibus.bridge mooncake, and the folder in place of the master.
"""

import os
import sys
from urllib.parse import quote

from omnibus import bridge
from omnibus.connector import drop_in, stores
from omnibus.connector.contract import Gone, Missing


class Folder:
    def __init__(self, config):
        self._folder = config["master"]

    def _path(self, key):
        return os.path.join(self._folder, quote(key, safe=""))

    def key(self, edge, key):
        return f"{key}@{edge.source}_{edge.target}"

    def put(self, key, parts):
        temporary = f"{self._path(key)}.{os.getpid()}"
        with open(temporary, "wb") as f:
            f.writelines(parts)
        os.replace(temporary, self._path(key))

    def get(self, key):
        if key.startswith("gone@"):
            raise Gone("it was got")
        try:
            with open(self._path(key), "rb") as f:
                return f.read()
        except FileNotFoundError:
            raise Missing(key) from None

    def remove(self, keys):
        return [self._remove(self._path(key)) for key in keys]

    @staticmethod
    def _remove(path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def present(self, keys):
        return [os.path.exists(self._path(key)) for key in keys]

    def withdraw(self):
        pass


drop_in.BACKENDS["mooncake"] = stores.shared_store(Folder)
bridge.main(*sys.argv[3:])  # behind -m omnibus.bridge
