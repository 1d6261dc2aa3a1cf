package codec

// ScanMsgpack checks src as Decode does before the library sees it.
func ScanMsgpack(src []byte) error {
	_, _, err := scanMsgpack(src, nil)
	return err
}

// SetBigEndian makes the package treat the host as big endian, until
// the returned function is called.
func SetBigEndian() (restore func()) {
	old := hostLittleEndian
	hostLittleEndian = false
	return func() { hostLittleEndian = old }
}

// DataOffset returns where the data of a tensor of ndim dimensions begins.
func DataOffset(ndim int) int { return dataOffset(ndim) }
