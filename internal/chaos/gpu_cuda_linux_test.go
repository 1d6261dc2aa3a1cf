//go:build cuda

package chaos

import (
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/cuda"
)

func init() {
	gpuDrivers["cuda"] = func() (cudaipc.Driver, error) { return cuda.Open(cuda.Options{}) }
}
