package lockpool

import (
	"runtime/pprof"
	"sync"
)

// profiles are the process's: who holds and who waits, with the stack that asked.
var profiles = sync.OnceValue(func() struct{ held, waiting *pprof.Profile } {
	return struct{ held, waiting *pprof.Profile }{pprof.NewProfile("lockpool.held"), pprof.NewProfile("lockpool.waiting")}
})
