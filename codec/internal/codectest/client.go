package codectest

import (
	"bufio"
	_ "embed"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/python"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

//go:embed client.py
var client []byte

// AgainstClient has this repository's Python client decode payloads, of which many are
// not well formed. Both must refuse the same payloads, and decode the others to the same
// values. Decode keeps the order of dicts; special describes values that only the format has.
func AgainstClient(t *testing.T, format string, payloads [][]byte, decode func([]byte) (any, error), special func(any) string) {
	t.Helper()
	pythontest.Interpreter(t, "numpy")
	script := filepath.Join(t.TempDir(), "client.py")
	if err := os.WriteFile(script, client, 0o600); err != nil {
		t.Fatal(err)
	}
	var questions strings.Builder
	for _, p := range payloads {
		fmt.Fprintf(&questions, "%x\n", p)
	}
	cmd := pythontest.Command(t, script, format)
	cmd.Stdin = strings.NewReader(questions.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewScanner(strings.NewReader(string(out)))
	answers.Buffer(nil, len(out)+1)
	accepted := 0
	for _, p := range payloads {
		if !answers.Scan() {
			t.Fatal("Python has answered less than it was asked")
		}
		want, got := answers.Text(), "refused"
		v, err := decode(p)
		if err == nil {
			got = "ok " + canonical(v, special)
			accepted++
		}
		if got != want {
			t.Errorf("%.200x: Python says %.200s, Go %.200s (%v)", p, want, got, err)
		}
	}
	if accepted < len(payloads)/8 || accepted > len(payloads)*7/8 {
		t.Errorf("%d of %d payloads are well formed: too few to compare, or too many", accepted, len(payloads))
	}
}

// canonical describes a decoded value, as client.py does.
func canonical(v any, special func(any) string) string {
	switch v := v.(type) {
	case nil:
		return "nil"
	case bool:
		return fmt.Sprint(v)
	case int64, uint64:
		return fmt.Sprintf("i%d", v)
	case float64:
		if math.IsNaN(v) {
			return "fnan"
		}
		return fmt.Sprintf("f%016x", math.Float64bits(v))
	case string:
		return "s" + hex.EncodeToString([]byte(v))
	case []byte:
		return "b" + hex.EncodeToString(v)
	case time.Time:
		return fmt.Sprintf("t%d", v.UnixMicro())
	case codec.Tensor:
		return fmt.Sprintf("tensor %v %v %x", v.DType, v.Shape, v.Data)
	case python.NDArray:
		return fmt.Sprintf("array %s %v %x", v.DType, v.Shape, v.Data)
	case []any:
		all := make([]string, len(v))
		for i, element := range v {
			all[i] = canonical(element, special)
		}
		return "[" + strings.Join(all, " ") + "]"
	case python.Dict:
		return canonicalDict(v, special)
	}
	return special(v)
}

// canonicalDict describes a dict as Python has it: of equal keys it keeps the first, with
// the last one's value.
func canonicalDict(v python.Dict, special func(any) string) string {
	at := make(map[string]int)
	var keys, values []string
	for i, item := range v {
		key, value := canonical(item.Key, special), canonical(item.Value, special)
		same := key
		switch k := item.Key.(type) {
		case bool:
			same = map[bool]string{false: "i0", true: "i1"}[k]
		case float64:
			switch {
			case math.IsNaN(k): // which no key is equal to
				same = fmt.Sprint("nan ", i)
			case k == math.Trunc(k) && math.Abs(k) < 1<<53:
				same = fmt.Sprintf("i%d", int64(k))
			}
		}
		if first, there := at[same]; there {
			values[first] = value
			continue
		}
		at[same] = len(keys)
		keys, values = append(keys, key), append(values, value)
	}
	for i := range keys {
		keys[i] += ":" + values[i]
	}
	return "{" + strings.Join(keys, " ") + "}"
}

// A Hostile writes msgpack that is nearly well formed, with many cases that decoders get wrong.
type Hostile struct {
	*rand.Rand
	out     []byte
	tensors int // extensions of a bundle that were written
	bundle  bool
}

// NewHostile returns a Hostile. With the same seed it writes the same values.
func NewHostile(seed uint64) *Hostile { return &Hostile{Rand: rand.New(rand.NewPCG(seed, 0))} } //nolint:gosec // to be repeated

// Value writes a value.
func (h *Hostile) Value() []byte {
	const deep = 4
	h.out = nil
	h.value(deep)
	return h.out
}

// Tree writes the tree of a bundle, and returns the number of tensors in it.
func (h *Hostile) Tree() (tree []byte, tensors int) {
	h.bundle, h.tensors = true, 0
	return h.Value(), h.tensors
}

// Damage changes some bytes of a payload, or cuts it short.
func (h *Hostile) Damage(payload []byte) []byte {
	p := append([]byte{}, payload...)
	for range 1 + h.IntN(2) {
		if len(p) == 0 {
			break
		}
		switch at := h.IntN(len(p)); h.IntN(4) {
		case 0:
			p[at] = byte(h.IntN(256))
		case 1:
			p[at] ^= 1 << h.IntN(8)
		case 2:
			p = p[:at]
		default:
			p = append(p[:at:at], p[min(len(p), at+1):]...)
		}
	}
	return p
}

func (h *Hostile) bytes(s string) { h.out = append(h.out, s...) }

func (h *Hostile) pick(of ...string) string { return of[h.IntN(len(of))] }

func (h *Hostile) text(s string) {
	if h.IntN(50) == 0 {
		h.out = append(h.out, 0xd9, byte(len(s)))
	} else {
		h.out = append(h.out, 0xa0|byte(len(s)))
	}
	h.bytes(s)
}

func (h *Hostile) value(deep int) {
	kinds := 10
	if deep <= 0 {
		kinds = 7
	}
	switch h.IntN(kinds) {
	case 0:
		h.bytes(h.pick("\xc0", "\xc2", "\xc3", "\xc1"))
	case 1, 2:
		h.number()
	case 3:
		h.text(h.pick("", "a", "data", "__tensor__", "é", "\x00", "\xff", "\xed\xa0\x80", "\xf4\x90\x80\x80"))
	case 4:
		h.data()
	case 5:
		h.extension()
	case 6, 7:
		h.marked(deep)
	case 8:
		n := h.IntN(4)
		h.out = append(h.out, byte(0x90|n))
		for range n {
			h.value(deep - 1)
		}
	default:
		n := h.IntN(4)
		h.out = append(h.out, byte(0x80|n))
		for range n {
			if h.IntN(3) == 0 {
				h.value(deep - 1)
			} else {
				h.text(h.pick("a", "b", "__tensor__", "__ndarray__", "__pil_image__"))
			}
			h.value(deep - 1)
		}
	}
}

func (h *Hostile) number() {
	h.bytes(h.pick(
		"\x00", "\x01", "\x02", "\x03", "\x7f", "\xff", "\xe0", "\xcc\x02", "\xcd\x00\x01", "\xd0\x80", "\xd1\xff\x00",
		"\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", "\xcf\x80\x00\x00\x00\x00\x00\x00\x00", "\xcf\x40\x00\x00\x00\x00\x00\x00\x00",
		"\xcf\x00\x00\x00\x01\x00\x00\x00\x00", "\xd3\x80\x00\x00\x00\x00\x00\x00\x00", "\xd3\x00\x00\x00\x00\x00\x00\x00\x00",
		"\xcb\x80\x00\x00\x00\x00\x00\x00\x00", "\xcb\x7f\xf0\x00\x00\x00\x00\x00\x01", "\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00",
		"\xca\x7f\x80\x00\x01", "\xca\x80\x00\x00\x00", "\xca\x3f\x80\x00\x00",
	))
}

// data writes binary data, sometimes so much that decoders do not copy it.
func (h *Hostile) data() {
	n := []int{0, 1, 2, 3, 4, 8, 12, 16, 24}[h.IntN(9)]
	if h.IntN(50) == 0 {
		n = 5000
	}
	h.out = append(h.out, 0xc5, byte(n>>8), byte(n))
	for range n {
		h.out = append(h.out, byte(h.IntN(256)))
	}
}

func (h *Hostile) extension() {
	if h.bundle && h.IntN(4) > 0 {
		h.out = append(h.out, 0xd6, 7, byte(h.tensors), 0, 0, 0)
		h.tensors++
		return
	}
	h.bytes(h.pick(
		"\xd6\xff\x00\x00\x00\x01", "\xd7\xff\xee\x6b\x27\xfc\x00\x00\x00\x00", "\xd7\xff\xee\x6b\x28\x00\x00\x00\x00\x00",
		"\xc7\x0c\xff\x00\x00\x00\x00\xff\xff\xff\xf1\x88\x6e\x09\x00", "\xc7\x0c\xff\x00\x00\x00\x00\xff\xff\xff\xf1\x88\x6e\x08\xff",
		"\xc7\x0c\xff\x00\x00\x00\x00\x00\x00\x00\x3a\xff\xf4\x41\x7f", "\xc7\x0c\xff\x00\x00\x00\x00\x00\x00\x00\x3a\xff\xf4\x41\x80",
		"\xd4\xff\x00", "\xd4\x01\x00", "\xd4\x80\x01",
	))
}

// marked writes a marked dictionary, mostly with all entries, and mostly in the order in
// which serializers write them. Apart from that half of the dictionaries are valid.
func (h *Hostile) marked(deep int) {
	mark := h.pick("__tensor__", "__ndarray__", "__pil_image__")
	sound := map[string]string{"__tensor__": "int8", "__ndarray__": "|u1", "__pil_image__": "L"}[mark]
	if h.IntN(2) == 0 {
		sound = ""
	}
	parts := []int{0, 1, 2, 3}
	if h.IntN(5) == 0 {
		h.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	}
	if h.IntN(10) == 0 {
		parts = parts[:3]
	}
	h.out = append(h.out, byte(0x80|len(parts)))
	for _, part := range parts {
		odd := h.IntN(30) == 0
		switch {
		case part == 0:
			h.text(mark)
		case part == 1 && mark == "__pil_image__":
			h.text("mode")
		default:
			h.text([]string{"", "dtype", "shape", "data"}[part])
		}
		switch {
		case odd:
			h.value(min(deep-1, 1))
		case part == 0:
			h.bytes("\xc3")
		case part == 1 && sound != "":
			h.text(sound)
		case part == 2 && sound != "":
			h.bytes("\x92\x02\x03")
		case part == 3 && sound != "":
			h.bytes("\xc4\x06abcdef")
		case part == 1 && mark == "__pil_image__":
			h.text(h.pick("L", "RGB", "RGBA", "PA", "1", "F", ""))
		case part == 1:
			h.text(h.pick("float32", "int8", "bool", "uint16", "complex64", "bfloat16", "x", "<f4", ">f4", "|u1", "<u1", "|f4", "|b1", "<M8",
				"<M8[ns]", "<m8[25s]", "<M8[1s]", "<M8[s/2]", "<M8[x]", "|S3", "<S3", "|S0", "<U2", "|U2", "<U0", "|O", "|V4", "<c8", "=f4"))
		case part == 2:
			h.shape()
		default:
			h.data()
		}
	}
}

func (h *Hostile) shape() {
	n := []int{0, 1, 1, 2, 2, 3, 32, 33}[h.IntN(8)]
	h.out = append(h.out, 0xdc, 0, byte(n))
	for range n {
		if n < 4 && h.IntN(4) == 0 {
			h.number()
		} else {
			h.out = append(h.out, byte(h.IntN(4)))
		}
	}
}
