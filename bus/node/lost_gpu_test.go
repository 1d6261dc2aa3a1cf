package node

import (
	"errors"
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

func TestOnlyLostGPU(t *testing.T) {
	lost := error(&cudaipc.Error{Call: "Free", Err: fmt.Errorf("%w: %w", cudaipc.ErrSticky, errors.New("a fault"))})
	other := errors.New("payloads were not given back")
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{other, false},
		{lost, true},
		{fmt.Errorf("stage: %w", errors.Join(nil, fmt.Errorf("close: %w", lost), lost)), true},
		{fmt.Errorf("stage: %w", errors.Join(lost, other)), false},
		{fmt.Errorf("%w: %w", other, lost), false},
		{&cudaipc.Error{Call: "Free", Err: cudaipc.ErrInvalid}, false},
		{fmt.Errorf("%w, it says", cudaipc.ErrSticky), false}, // no *cudaipc.Error
	} {
		if got := onlyLostGPU(c.err); got != c.want {
			t.Errorf("%v: %t", c.err, got)
		}
	}
}
