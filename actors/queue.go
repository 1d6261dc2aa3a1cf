package actors

// minQueueLength is the smallest length of a buffer once a queue has held a
// value. It is a power of two, as every buffer length is.
const minQueueLength = 8

// shrinkWindow is the window, in buffer lengths of values taken out, after which
// a buffer that was far too large all through it is halved. That keeps shrinking
// cheap (at most a quarter of a buffer is copied for every shrinkWindow buffers
// of traffic) and keeps a bursty sender from making the queue shrink and grow
// with every burst.
const shrinkWindow = 8

// queue is a first-in first-out ring of values.
//
// Its buffer starts empty, doubles when it is full and is halved when it has
// been at most a quarter full for long. A value that leaves the queue is cleared
// in the buffer, so the queue retains no value that it does not hold.
//
// The zero value is an empty queue. A queue is not safe for concurrent use.
type queue[T any] struct {
	buffer []T // its length is zero or a power of two
	head   int // index of the oldest value
	length int

	peak   int // the greatest length in this window
	passed int // values taken out in this window
}

// len returns the number of values held.
func (q *queue[T]) len() int { return q.length }

// push adds v at the end.
func (q *queue[T]) push(v T) {
	if q.length == len(q.buffer) {
		q.resize(max(minQueueLength, 2*len(q.buffer)))
	}
	q.buffer[(q.head+q.length)&(len(q.buffer)-1)] = v
	q.length++
}

// pop removes the oldest value. ok is false when the queue is empty.
func (q *queue[T]) pop() (v T, ok bool) {
	var one [1]T
	n := q.take(one[:])
	return one[0], n == 1
}

// take moves the oldest values into dst, at most as many as fit, and returns
// how many it moved.
func (q *queue[T]) take(dst []T) int {
	n := min(len(dst), q.length)
	if n == 0 {
		return 0
	}
	// The length peaks only right before values leave, so a check here sees
	// every peak and costs push nothing.
	q.peak = max(q.peak, q.length)

	first := q.buffer[q.head:min(q.head+n, len(q.buffer))]
	second := q.buffer[:n-len(first)]
	copy(dst, first)
	copy(dst[len(first):], second)
	clear(first)
	clear(second)

	q.head = (q.head + n) & (len(q.buffer) - 1)
	q.length -= n
	q.passed += n
	if q.passed >= shrinkWindow*len(q.buffer) {
		q.closeWindow()
	}
	return n
}

// closeWindow halves the buffer if it was far too large all through the window,
// and begins the next window.
func (q *queue[T]) closeWindow() {
	if half := len(q.buffer) / 2; half >= minQueueLength && q.peak <= half/2 {
		q.resize(half)
	}
	q.peak, q.passed = 0, 0
}

// resize moves the values into a buffer of the given length, which must be a
// power of two and hold them all.
func (q *queue[T]) resize(length int) {
	buffer := make([]T, length)
	n := copy(buffer, q.buffer[q.head:min(q.head+q.length, len(q.buffer))])
	copy(buffer[n:], q.buffer[:q.length-n])
	q.buffer, q.head = buffer, 0
	q.peak, q.passed = 0, 0
}
