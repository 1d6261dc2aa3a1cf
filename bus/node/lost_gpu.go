package node

import (
	"errors"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// onlyLostGPU reports whether all that an error says is that a GPU has failed before. What
// was to be closed on it is, and nobody uses anything of the host's any more.
func onlyLostGPU(err error) bool {
	switch e := err.(type) { //nolint:errorlint // it looks at each part
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
