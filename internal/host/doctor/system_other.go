//go:build !linux

package doctor

import (
	"errors"
	"runtime"
)

func system(Subject) []Check {
	return []Check{missing("system", errors.New(runtime.GOOS), "stages as processes need Linux; a bus inside one process works everywhere")}
}
