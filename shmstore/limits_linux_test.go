package shmstore

import (
	"errors"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

// TestLimitsAreReadOnceForManySmallSegments: a small segment needs no check of the limits
// if a recent check found enough memory for it, and no check serves more than it found.
func TestLimitsAreReadOnceForManySmallSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 100 << 10
		looks, free := 0, int64(1<<30)
		l := &limits{probe: headroom.Probe{Cgroup: fstest.MapFS{}, Proc: meminfo(func() int64 {
			looks++
			return free
		})}}
		const many = 10 * cachedHeadroom / size
		for range many {
			if err := l.checkCached(size); err != nil {
				t.Fatal(err)
			}
		}
		if looks < 10 || looks > 11 {
			t.Errorf("%d segments of %d bytes took %d checks of %d", many, size, looks, cachedHeadroom)
		}
		before := looks
		<-time.After(cachedHeadroomTime + 1)
		if err := l.checkCached(size); err != nil || looks != before+1 {
			t.Errorf("an old check was used: %v", err)
		}
		if err := l.checkCached(smallBytes + 1); err != nil || looks != before+2 {
			t.Errorf("the limits were not checked for a large segment: %v", err)
		}
		free = size
		<-time.After(cachedHeadroomTime + 1)
		if err := l.checkCached(size); !errors.Is(err, ErrMemory) {
			t.Errorf("a segment of %d bytes where so many are free: %v", size, err)
		}
		if err := l.checkCached(size / 2); err != nil {
			t.Errorf("one of half of them: %v", err)
		}
	})
}
