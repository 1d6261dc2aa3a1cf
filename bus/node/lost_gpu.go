package node

import (
	"errors"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// onlyLostGPU reports whether every part of an error is a GPU that has failed earlier. Then the
// link is closed completely, and no memory of the host is in use.
func onlyLostGPU(err error) bool {
	switch e := err.(type) { //nolint:errorlint // inspects each part
	case nil:
		return false
	case *cudaipc.Error:
		return errors.Is(e, cudaipc.ErrSticky)
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if !onlyLostGPU(part) {
				return false
			}
		}
		return true
	default:
		return onlyLostGPU(errors.Unwrap(err))
	}
}
