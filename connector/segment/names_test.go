package segment

import (
	"encoding/json"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
)

// FuzzMetadata: with any metadata only the key's segment or an anonymous one is opened, and no
// empty one.
func FuzzMetadata(f *testing.F) {
	f.Add("key", []byte(`{"shm": {"name": "key", "size": 10}, "size": 10}`), true)
	f.Add("key", []byte(`{"key": {"shm": {"name": "psm_01abcdef", "size": 1e3}}}`), true)
	f.Add("key", []byte(`{"shm": {"name": "../key", "size": -1}}`), true)
	f.Add("key", []byte("\x81\xa3shm\x82\xa4name\xa3key\xa4size\x07"), false)
	f.Add("a@b_c", []byte(`{"source_host": "h"}`), true)
	f.Fuzz(func(t *testing.T, key string, text []byte, isJSON bool) {
		var meta connector.Metadata
		var err error
		if isJSON {
			err = json.Unmarshal(text, &meta)
		} else {
			err = codec.MsgpackSerializer{}.Decode(text, &meta)
		}
		if err != nil || connector.CheckKey(key) != nil {
			return
		}
		at, err := locate(key, meta.For(key))
		if err != nil {
			return
		}
		if at.name != key && !isAnonymous(at.name) {
			t.Errorf("the key %q leads to %q", key, at.name)
		}
		if at.size < 0 || checkName(at.name) != nil || connector.CheckKey(at.name) != nil {
			t.Errorf("%q, %d bytes", at.name, at.size)
		}
	})
}

func TestAnonymous(t *testing.T) {
	for range 100 {
		if name := anonymous(); !isAnonymous(name) {
			t.Errorf("%q is not anonymous", name)
		}
	}
	for _, name := range []string{"psm_", "psm_0123456", "psm_012345678", "psm_0123456g", "psm_0123456A", "xpsm_01234567", ""} {
		if isAnonymous(name) {
			t.Errorf("%q is anonymous", name)
		}
	}
}
