package cuda

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// TestLayoutOfAStructureByValue compares with the words of a C compiler's call of
// cuIpcOpenMemHandle_v2 on either processor, in order.
func TestLayoutOfAStructureByValue(t *testing.T) {
	const result, copied, flags = 0xaaaa, 0xbbbb, 0xcccc
	var h cudaipc.Handle
	words := make([]uintptr, 8)
	for i := range words {
		word := 0x1111111111111111 * uint64(i+1)
		words[i] = uintptr(word)
		binary.LittleEndian.PutUint64(h[8*i:], word)
	}
	for _, c := range []struct {
		name string
		got  []uintptr
		want []uintptr
	}{
		{
			"amd64: two registers, four that are empty, the stack",
			onStack(nil, result, &h, flags),
			append([]uintptr{result, flags, 0, 0, 0, 0}, words...),
		},
		{
			"arm64: three registers",
			byPointer(nil, result, copied, flags),
			[]uintptr{result, copied, flags},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
