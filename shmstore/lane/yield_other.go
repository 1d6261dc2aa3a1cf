//go:build !linux

package lane

import "runtime"

// yield lets another goroutine of this process run.
func yield() { runtime.Gosched() }
