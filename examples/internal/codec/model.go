package codec

import "math/bits"

const (
	// maxClass is the largest class of a level: the bit length of its magnitude.
	maxClass = 20

	// contexts is the number of classes of neighbourhoods; see lane.context.
	contexts = 24

	// topBits is the number of bits behind the leading one whose probabilities are
	// learnt. Those below are nearly even.
	topBits = 2
)

// model holds the probabilities that a chunk learns as it goes. Encoder and
// decoder make the same decisions with it in the same order.
type model struct {
	// class predicts whether a level's class goes beyond the index.
	class [MaxChannels][contexts][maxClass]bit
	// top predicts the topBits, a binary tree by level and node.
	top [contexts][maxClass + 1][1<<topBits - 1]bit
}

func (m *model) reset() {
	for channel := range m.class {
		for c := range m.class[channel] {
			for i := range m.class[channel][c] {
				m.class[channel][c][i] = even
			}
		}
	}
	for c := range m.top {
		for class := range m.top[c] {
			m.top[c][class] = [...]bit{even, even, even}
		}
	}
}

// encode codes one level.
func (m *model) encode(e *rangeEncoder, channel, context int, level int32) {
	magnitude := uint32(max(level, -level))
	class := bits.Len32(magnitude)
	predict := &m.class[channel][context]
	for i := range class {
		e.encode(&predict[i], true)
	}
	if class < maxClass {
		e.encode(&predict[class], false)
	}
	if class == 0 {
		return
	}
	tree := &m.top[context][class]
	rest, node := class-1, 0
	for range min(topBits, rest) {
		rest--
		one := magnitude>>rest&1 == 1
		e.encode(&tree[node], one)
		node = child(node, one)
	}
	e.encodeEven(magnitude, rest)
	sign := uint32(0)
	if level < 0 {
		sign = 1
	}
	e.encodeEven(sign, 1)
}

// decode returns one level: the mirror image of encode.
func (m *model) decode(d *rangeDecoder, channel, context int) int32 {
	predict := &m.class[channel][context]
	class := 0
	for class < maxClass && d.decode(&predict[class]) {
		class++
	}
	if class == 0 {
		return 0
	}
	tree := &m.top[context][class]
	magnitude, rest, node := uint32(1), class-1, 0
	for range min(topBits, rest) {
		rest--
		one := d.decode(&tree[node])
		magnitude <<= 1
		if one {
			magnitude |= 1
		}
		node = child(node, one)
	}
	magnitude = magnitude<<rest | d.decodeEven(rest)
	if d.decodeEven(1) == 1 {
		return -int32(magnitude)
	}
	return int32(magnitude)
}

// child returns the node below in a binary tree stored level by level.
func child(node int, one bool) int {
	if one {
		return 2*node + 2
	}
	return 2*node + 1
}

// A lane remembers the magnitudes of one channel around the level being coded.
type lane struct {
	before, current []int32 // of the frame before and this one; k is at laneMargin+k
}

// The neighbourhood reaches two below the first coefficient and one beyond the
// last. The margins always hold zeros.
const (
	laneMargin = 2
	laneExtra  = laneMargin + 1
)

func (l *lane) reset(hop int) {
	l.before = resetInts(l.before, hop+laneExtra)
	l.current = resetInts(l.current, hop+laneExtra)
}

func resetInts(s []int32, n int) []int32 {
	if cap(s) < n {
		return make([]int32, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// context classes the magnitudes around coefficient k: by value while they are
// small, by half powers of two above.
func (l *lane) context(k int) int {
	c := l.current[k:][:laneMargin:laneMargin]
	b := l.before[k+laneMargin-1:][:3:3]
	sum := uint32(c[0]+2*c[1]+b[0]+2*b[1]+b[2]) / 2
	if sum < 4 {
		return int(sum)
	}
	log := bits.Len32(sum) - 1
	return min(2*log+int(sum>>(log-1)&1), contexts-1)
}

func (l *lane) set(k int, level int32) { l.current[laneMargin+k] = max(level, -level) }

// advance moves on to the next frame, whose levels must all be set.
func (l *lane) advance() { l.before, l.current = l.current, l.before }
