package emul

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// TestSubmitTooLate: a Submit that runs while the stream ends is refused, because no goroutine
// would run its operations.
func TestSubmitTooLate(t *testing.T) {
	driver, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = driver.Close() }()
	dev, err := driver.Open(cudaipc.UUID{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	s, ok := made.(*stream)
	if !ok {
		t.Fatalf("%T", made)
	}
	s.drain(task{})
	if err := s.Submit(cudaipc.Op{Kind: cudaipc.OpCopy}); err == nil {
		t.Error("an ended stream took an operation")
	}
}
