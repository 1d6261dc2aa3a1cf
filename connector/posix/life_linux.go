package posix

import "sync"

// life counts who uses a mapping, so that it goes behind the last of them.
type life struct {
	counting sync.Mutex
	users    int
	ending   bool
	end      func()
}

// enter begins a use, unless the end was decided.
func (l *life) enter() bool {
	l.counting.Lock()
	defer l.counting.Unlock()
	if l.ending {
		return false
	}
	l.users++
	return true
}

// again begins another use beside one that there is.
func (l *life) again() {
	l.counting.Lock()
	defer l.counting.Unlock()
	l.users++
}

// leave ends a use.
func (l *life) leave() {
	l.counting.Lock()
	l.users--
	last := l.ending && l.users == 0
	l.counting.Unlock()
	if last {
		l.end()
	}
}

// finish lets nobody in any more, and ends when everybody has left. It may be called
// again.
func (l *life) finish() {
	l.counting.Lock()
	last := !l.ending && l.users == 0
	l.ending = true
	l.counting.Unlock()
	if last {
		l.end()
	}
}

// payload is a value that was got.
type payload struct {
	value   []byte
	release func()
	of      *life
}

// Bytes implements [connector.Payload].
func (p *payload) Bytes() []byte { return p.value }

// Release implements [connector.Payload].
func (p *payload) Release() {
	p.release()
	p.of.leave()
}

// hold makes a payload, which is a use of the mapping that it lies in. The caller is
// another.
func (l *life) hold(value []byte, release func()) *payload {
	l.again()
	return &payload{value: value, release: release, of: l}
}
