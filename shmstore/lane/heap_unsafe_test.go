package lane

import "unsafe"

// heapSegments returns both segments of a lane within one process, formatted.
func (g Geometry) heapSegments() (sender, receiver []byte) {
	sender, receiver = alignedBytes(g.SenderBytes()), alignedBytes(g.ReceiverBytes())
	g.FormatSender(sender)
	g.FormatReceiver(receiver)
	return sender, receiver
}

func alignedBytes(n int) []byte {
	b := make([]byte, n+segmentAlign-1)
	skip := -uintptr(unsafe.Pointer(&b[0])) & (segmentAlign - 1)
	return b[skip : int(skip)+n : int(skip)+n]
}
