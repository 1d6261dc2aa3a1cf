package kv_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/kv"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// TestPython exchanges frames, both ways, with Python code that is written
// from the description of the format.
func TestPython(t *testing.T) { exchange(t) }

// TestVLLMOmni exchanges frames with vLLM-Omni's own code, both ways.
func TestVLLMOmni(t *testing.T) {
	wheel := os.Getenv("OMNIBUS_VLLM_OMNI")
	if wheel == "" {
		t.Skip("OMNIBUS_VLLM_OMNI is not set: the folder of an unpacked vllm-omni wheel is missing")
	}
	exchange(t, filepath.Join(wheel, "vllm_omni", "distributed", "omni_connectors", "kv_transfer_manager.py"))
}

// peer is a process of testdata/frame.py.
type peer struct{ *pythontest.Process }

func (p peer) ask(t *testing.T, request map[string]any) map[string]json.RawMessage {
	t.Helper()
	p.Tell(request)
	var answer map[string]json.RawMessage
	if err := p.Answer(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

func exchange(t *testing.T, args ...string) {
	t.Helper()
	p := peer{pythontest.Start(t, pythontest.Command(t, "testdata/frame.py", args...))}
	defer func() {
		if err := p.End(); err != nil { // how it ends counts
			t.Error(err)
		}
	}()
	want := sample(t)

	t.Run("Go to Python", func(t *testing.T) {
		answer := p.ask(t, map[string]any{"op": "decode", "frame": hex.EncodeToString(encode(t, want))})
		if diff := cmp.Diff(plain(t, portable(want)), untyped(t, answer["payload"])); diff != "" {
			t.Errorf("%s%s", diff, answer["error"])
		}
	})
	t.Run("Python to Go", func(t *testing.T) {
		sent := sample(t)
		sent.Layers[3].Value = tensorOf(t, codec.DTypeFloat64, 1) // PyTorch does not take a scalar apart
		answer := p.ask(t, map[string]any{"op": "encode", "payload": portable(sent)})
		got, err := codec.Decode[kv.Payload](kv.Serializer{}, frameIn(t, answer))
		if err != nil {
			t.Fatalf("%v%s", err, answer["error"])
		}
		if diff := cmp.Diff(sent, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("a dtype that Go lacks", func(t *testing.T) {
		fp8 := map[string]any{"d": "float8_e4m3fnuz", "s": []int{2}, "hex": "0102"}
		answer := p.ask(t, map[string]any{"op": "encode", "payload": map[string]any{
			"rid": "r", "bids": []int{}, "meta": map[string]any{}, "key": []any{fp8}, "value": []any{nil},
		}})
		_, err := codec.Decode[kv.Payload](kv.Serializer{}, frameIn(t, answer))
		checkField(t, err, "td[0].d", codec.ErrMismatch)
	})
	if len(args) == 0 {
		return
	}
	// The reason why this package writes no tensor without elements.
	t.Run("no elements", func(t *testing.T) {
		const header = `{"rid":"","bids":[],"meta":{},"td":[{"n":"key_cache_0","i":0,"d":"int8","s":[0],"o":0,"b":0}],"nl":1}`
		answer := p.ask(t, map[string]any{"op": "decode", "frame": hex.EncodeToString(frame(header, 1))})
		if !strings.Contains(string(answer["error"]), "must not be 0") {
			t.Errorf("%s", answer)
		}
	})
}

func frameIn(t *testing.T, answer map[string]json.RawMessage) []byte {
	t.Helper()
	var text string
	if err := json.Unmarshal(answer["frame"], &text); err != nil {
		t.Fatalf("%v: %s", err, answer["error"])
	}
	frame, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// portable is a payload as testdata/frame.py describes it.
func portable(p kv.Payload) map[string]any {
	key, value := make([]any, len(p.Layers)), make([]any, len(p.Layers))
	for i, layer := range p.Layers {
		key[i], value[i] = portableTensor(layer.Key), portableTensor(layer.Value)
	}
	meta := make(map[string]any, len(p.Metadata))
	for name, v := range p.Metadata {
		meta[name] = v
	}
	// encoding/json would write integers, and Python tells them apart.
	meta["scale"], meta["zero"] = json.Number("1.0"), json.Number("-0.0")
	return map[string]any{"rid": p.RequestID, "bids": p.Blocks, "meta": meta, "key": key, "value": value}
}

func portableTensor(t *codec.Tensor) any {
	if t == nil {
		return nil
	}
	return map[string]any{"d": t.DType.String(), "s": append([]int{}, t.Shape...), "hex": hex.EncodeToString(t.Data)}
}

// plain turns v into what encoding/json reads, numbers as they are spelled.
func plain(t *testing.T, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return untyped(t, text)
}

func untyped(t *testing.T, text []byte) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}
