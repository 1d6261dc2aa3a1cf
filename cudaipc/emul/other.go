//go:build !linux

package emul

import (
	"fmt"
	"runtime"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Driver is never made here.
type Driver struct{ cudaipc.Driver }

// New fails: shared memory without a name is Linux's.
func New(opts Options) (*Driver, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: emulated on Linux alone, not on %s", cudaipc.ErrNoDriver, runtime.GOOS)
}
