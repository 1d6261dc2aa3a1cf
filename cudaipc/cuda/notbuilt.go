//go:build !cuda || !linux || (!amd64 && !arm64)

package cuda

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Open loads the driver. In this build it always fails with [cudaipc.ErrNotBuilt].
func Open(o Options) (cudaipc.Driver, error) {
	return nil, fmt.Errorf("%w: %s is not for this program; build it for Linux on amd64 or arm64 with -tags cuda", cudaipc.ErrNotBuilt, o.libcuda())
}
