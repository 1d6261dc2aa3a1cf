package codec_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
)

// TestContract checks what every serializer promises.
func TestContract(t *testing.T) {
	_, matrix := newTensor(t, codec.DTypeFloat32, 2, 3)
	elements, err := codec.View[float32](matrix)
	if err != nil {
		t.Fatal(err)
	}
	copy(elements, []float32{1, 2, 3, 4, 5, 6})
	tests := []struct {
		name       string
		serializer codec.Serializer
		value      any
		bad        any // a value that cannot be encoded
		target     any // a nil pointer, of a type that can be decoded into
	}{
		{"raw bytes", codec.RawSerializer{}, []byte("payload"), 42, (*[]byte)(nil)},
		{"raw string", codec.RawSerializer{}, "payload", []int{1}, (*string)(nil)},
		{"raw empty", codec.RawSerializer{}, []byte{}, nil, (*[]byte)(nil)},
		{"msgpack", codec.MsgpackSerializer{}, map[string]any{"k": "v"}, make(chan int), (*any)(nil)},
		{"tensor", codec.TensorSerializer{}, matrix, matrix.Data, (*codec.Tensor)(nil)},
		{"tensor pointer", codec.TensorSerializer{}, &matrix, (*codec.Tensor)(nil), (*codec.Tensor)(nil)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			codectest.Contract(t, tt.serializer, tt.value, tt.bad, tt.target)
		})
	}
}

func TestRawDecode(t *testing.T) {
	payload := []byte("some bytes, and others behind them")[:len("some bytes")]
	view, err := codec.Decode[[]byte](codec.RawSerializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	if &view[0] != &payload[0] {
		t.Error("decoded bytes are not a view")
	}
	if cap(view) != len(payload) {
		t.Errorf("capacity %d reaches beyond the payload of %d", cap(view), len(payload))
	}
	s, err := codec.Decode[string](codec.RawSerializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	payload[0] = 'S'
	if s != "some bytes" {
		t.Errorf("decoded string changed with the payload: %q", s)
	}
}

// user is a serializer from outside the package.
type user struct {
	codec.RawSerializer
	name string
	id   codec.ID
}

func (u user) Name() string { return u.name }
func (u user) ID() codec.ID { return u.id }

func TestDefault(t *testing.T) {
	r := codec.Default()
	if diff := cmp.Diff([]string{"raw", "msgpack", "tensor"}, r.Names()); diff != "" {
		t.Error(diff)
	}
	for name, id := range map[string]codec.ID{"raw": 1, "msgpack": 2, "tensor": 3} {
		byName, err := r.ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		byID, err := r.ByID(id)
		if err != nil {
			t.Fatal(err)
		}
		if byName != byID || byID.Name() != name || byID.ID() != id {
			t.Errorf("%q is ID %d, and ID %d is %q", name, byName.ID(), id, byID.Name())
		}
	}
	if err := r.Register(user{name: "mine", id: 256}); err != nil {
		t.Fatal(err)
	}
	if _, err := codec.Default().ByName("mine"); !errors.Is(err, codec.ErrUnknown) {
		t.Errorf("two default registries share a serializer: %v", err)
	}
}

func TestRegister(t *testing.T) {
	tests := []struct {
		name string
		add  codec.Serializer
		want string
	}{
		{"new", user{name: "new", id: 257}, ""},
		{"largest ID", user{name: "new", id: 1<<32 - 1}, ""},
		{"same again", user{name: "mine", id: 256}, "already"},
		{"name taken", user{name: "mine", id: 257}, "already"},
		{"ID taken", user{name: "new", id: 256}, "already"},
		{"built-in again", codec.MsgpackSerializer{}, "already"},
		{"ID zero", user{name: "new", id: 0}, "reserved"},
		{"ID reserved", user{name: "new", id: 255}, "reserved"},
		{"ID of a built-in", user{name: "new", id: 3}, "reserved"},
		{"no name", user{name: "", id: 257}, "reserved"},
		{"package below", user{name: "kv", id: codec.IDKV}, ""},
		{"ID of a package below", user{name: "new", id: codec.IDKV}, "reserved"},
		{"name of a package below", user{name: "kv", id: 257}, "reserved"},
		{"name of one, ID of another", user{name: "kv", id: codec.IDProto}, "reserved"},
		{"name of a package below, ID of a built-in", user{name: "kv", id: codec.IDRaw}, "reserved"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := codec.Default()
			if err := r.Register(user{name: "mine", id: 256}); err != nil {
				t.Fatal(err)
			}
			before := r.Names()
			err := r.Register(tt.add)
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			if tt.want != "" {
				if diff := cmp.Diff(before, r.Names()); diff != "" {
					t.Errorf("a refused serializer changed the registry:\n%s", diff)
				}
				return
			}
			if got, err := r.ByID(tt.add.ID()); err != nil || got != tt.add {
				t.Errorf("ByID = %v, %v", got, err)
			}
		})
	}
}

// TestIDs fixes the numbers that processes of different versions exchange.
func TestIDs(t *testing.T) {
	var r codec.Registry
	for name, id := range map[string]codec.ID{"omni": 4, "kv": 5, "proto": 6} {
		if err := r.Register(user{name: name, id: id}); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"omni", "kv", "proto"}, r.Names()); diff != "" {
		t.Error(diff)
	}
	for want, id := range map[codec.ID]codec.ID{4: codec.IDOmni, 5: codec.IDKV, 6: codec.IDProto} {
		if id != want {
			t.Errorf("ID %d, want %d", id, want)
		}
	}
}

func TestUnknown(t *testing.T) {
	var empty codec.Registry
	full := codec.Default()
	_, byName := full.ByName("msgpak")
	_, byID := full.ByID(77)
	_, inEmpty := empty.ByID(1)
	tests := []struct {
		name string
		err  error
		text string
	}{
		{"by name", byName, `name "msgpak"; registered: raw, msgpack, tensor`},
		{"by ID", byID, "ID 77; registered: raw"},
		{"empty registry", inEmpty, "registered: none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !errors.Is(tt.err, codec.ErrUnknown) || !strings.Contains(tt.err.Error(), tt.text) {
				t.Errorf("got %v, want an ErrUnknown with %q", tt.err, tt.text)
			}
		})
	}
}

func TestRegistryConcurrent(t *testing.T) {
	const registrars, each = 8, 100
	r := codec.Default()
	var all sync.WaitGroup
	for g := range registrars {
		all.Go(func() {
			for i := range each {
				n := g*each + i
				if err := r.Register(user{name: fmt.Sprint("user ", n), id: codec.FirstUserID + codec.ID(n)}); err != nil {
					t.Error(err)
				}
				if _, err := r.ByID(codec.IDMsgpack); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got, want := len(r.Names()), 3+registrars*each; got != want {
		t.Errorf("%d serializers registered, want %d", got, want)
	}
}
