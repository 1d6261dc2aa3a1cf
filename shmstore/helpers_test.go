package shmstore

import (
	"runtime"
	"testing"
)

// memories are the kinds of memory this platform has.
func memories() []Memory {
	if runtime.GOOS == "linux" {
		return []Memory{Heap, Shared}
	}
	return []Memory{Heap}
}

// eachMemory runs a test over every kind of memory.
func eachMemory(t *testing.T, test func(t *testing.T, memory Memory)) {
	for _, memory := range memories() {
		t.Run(memory.String(), func(t *testing.T) { test(t, memory) })
	}
}

// create makes a store that is checked and closed at the end of the test.
func create(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Create(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return // what is still open would be a second, confusing failure
		}
		wantClean(t, s)
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// wantClean fails the test if an invariant is broken.
func wantClean(t testing.TB, s *Store) {
	t.Helper()
	for _, v := range s.Check() {
		t.Errorf("Check: %v", v)
	}
}

// fill writes bytes that follow from a seed.
func fill(b []byte, seed uint64) {
	for i := range b {
		seed = seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(seed >> 56)
	}
}

// content returns size bytes that follow from a seed.
func content(size int, seed uint64) []byte {
	b := make([]byte, size)
	fill(b, seed)
	return b
}
