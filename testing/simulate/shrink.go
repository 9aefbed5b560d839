package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// truncate ends the schedule after d.
func (s *schedule) truncate(d time.Duration) {
	s.Lasts = min(s.Lasts, d)
	s.Steps = slices.DeleteFunc(slices.Clone(s.Steps), func(st step) bool { return st.At >= s.Lasts })
}

func (r *runner) explain(ctx context.Context, out io.Writer, mu *sync.Mutex, o options, s schedule, found result) error {
	name := filepath.Join(o.Out, fmt.Sprintf("violation-%d-%d", s.Seed, s.Bubble))
	f, err := os.Create(name + ".json")
	if err != nil {
		return err
	}
	defer f.Close()
	return s.write(f)
}
