package cuda

// Options select the driver's library. The zero value loads the machine's.
type Options struct {
	// Library is the name or the path of the driver's library. Default libcuda.so.1, which the
	// dynamic linker finds.
	Library string
}

const defaultLibrary = "libcuda.so.1"

func (o Options) libcuda() string {
	if o.Library == "" {
		return defaultLibrary
	}
	return o.Library
}
