package lane

func testGeometry(tb interface{ Fatal(...any) }, capacityBytes int) Geometry {
	geo, err := Layout(7, capacityBytes)
	if err != nil {
		tb.Fatal(err)
	}
	return geo
}

// heapLane is a lane within this process.
func heapLane(tb interface{ Fatal(...any) }, capacityBytes int, opts Options) (*Sender, *Receiver) {
	ours, theirs := ChannelWakers()
	return heapLaneWith(tb, capacityBytes, opts, ours, theirs)
}

func heapLaneWith(tb interface{ Fatal(...any) }, capacityBytes int, opts Options, sender, receiver Waker) (*Sender, *Receiver) {
	geo := testGeometry(tb, capacityBytes)
	a, b := geo.HeapSegments()
	s, err := NewSender(geo, a, b, sender, opts)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := NewReceiver(geo, b, a, receiver, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return s, r
}
