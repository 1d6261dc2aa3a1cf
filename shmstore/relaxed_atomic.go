//go:build race || !amd64

package shmstore

import "sync/atomic"

func relaxedStore64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
func relaxedStore32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// lastStoreFences is not claimed for the race detector, nor for architectures
// that reorder stores.
const lastStoreFences = false
