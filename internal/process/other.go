//go:build !linux

package process

import (
	"errors"
	"time"
)

var errUnsupported = errors.New("watching processes needs Linux")

func (*Process) hasExited() bool { return false }
func (*Process) isStopped() bool { return false }

func (*Process) processorTime() (time.Duration, bool) { return 0, false }

func adopt(int, int) (*Process, error) { return nil, errUnsupported }

// CloseAll does nothing: packets have no descriptors on this system.
func CloseAll([]int) {}

// DuplicateAll is not supported here.
func DuplicateAll([]int) ([]int, error) { return nil, errUnsupported }

// Self is not supported here.
func Self() (int, error) { return -1, errUnsupported }

// Duplicate is not supported here.
func Duplicate(int) (int, error) { return -1, errUnsupported }

// SinceBoot is not supported here.
func SinceBoot() (time.Duration, error) { return 0, errUnsupported }

// Watch is not supported here.
func Watch(int, time.Duration) (*Process, error) { return nil, errUnsupported }
