package hostnode_test

import (
	"math"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/hostnode"
)

// TestTimeLeft: encoding and decoding keep a deadline, as far as the message can represent it. A past
// deadline stays past, and only 0 means none.
func TestTimeLeft(t *testing.T) {
	if left, at := hostnode.TimeLeft(time.Time{}), hostnode.DeadlineOf(0); left != 0 || !at.IsZero() {
		t.Errorf("without a deadline %d is left, and 0 is the deadline %v", left, at)
	}
	if left := hostnode.TimeLeft(time.Now()); left >= 0 {
		t.Errorf("%d is left of a deadline that is over", left)
	}
	for _, left := range []int64{math.MinInt64, math.MinInt64 + 1, -int64(time.Hour), -1, 1, int64(time.Hour), math.MaxInt64 - 1, math.MaxInt64} {
		before := time.Now()
		at := hostnode.DeadlineOf(left)
		again := hostnode.TimeLeft(at)
		took := int64(time.Since(before))
		if at.IsZero() || again == 0 || again > left || (left > math.MinInt64+took && again < left-took) {
			t.Errorf("%d is the deadline %v, of which %d is left", left, at, again)
		}
	}
}
