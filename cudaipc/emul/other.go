//go:build !linux

package emul

import (
	"fmt"
	"runtime"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Driver cannot be made on this system.
type Driver struct{ cudaipc.Driver }

// New fails: the emulation needs memfds, which only Linux has.
func New(opts Options) (*Driver, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: emulated on Linux alone, not on %s", cudaipc.ErrNoDriver, runtime.GOOS)
}
