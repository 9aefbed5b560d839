package lockpool

// noCopy makes go vet report copies of the struct that it is a field of. (The
// convention is that of sync.noCopy.)
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}
