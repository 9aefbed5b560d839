package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// hold is one hold by a process, in nanoseconds of the machine's wall clock.
type hold struct {
	Process           int
	Granted, Unlocked int64
}

// contend lets n processes contend for one lock and returns the holds of each.
func contend(kind string, n int, work time.Duration, turn int) [][]hold {
	lock := fmt.Sprintf("/bench-%s-%d-%s-%d", kind, n, work, turn)
	var starts []io.Closer
	var outs []*json.Decoder
	var cmds []*exec.Cmd
	for range n {
		cmd := exec.Command(must(os.Executable()), "-child", kind, "-zookeeper", *server,
			"-path", lock, "-d", duration.String(), "-work", work.String())
		cmd.Stderr = os.Stderr
		starts = append(starts, must(cmd.StdinPipe()))
		outs = append(outs, json.NewDecoder(must(cmd.StdoutPipe())))
		check(cmd.Start())
		cmds = append(cmds, cmd)
	}
	for _, out := range outs { // until all are connected
		var ready string
		check(out.Decode(&ready))
	}
	for _, start := range starts {
		check(start.Close())
	}
	all := make([][]hold, n)
	for i, out := range outs {
		check(out.Decode(&all[i]))
		check(cmds[i].Wait())
		for j := range all[i] {
			all[i][j].Process = i
		}
	}
	return all
}

// contender is the main function of the processes that the function contend starts.
func contender() {
	c := must(open(*child, *server, 1))
	defer c.close()
	w := c.worker(*path)
	check(w.lock()) // connects, and creates the lock's parent
	check(w.unlock())
	out := json.NewEncoder(os.Stdout)
	check(out.Encode("ready"))
	must(io.ReadAll(os.Stdin))
	var holds []hold
	for end := time.Now().Add(*duration); time.Now().Before(end); {
		check(w.lock())
		h := hold{Granted: time.Now().UnixNano()}
		if *work > 0 {
			time.Sleep(*work)
		}
		h.Unlocked = time.Now().UnixNano()
		check(w.unlock())
		holds = append(holds, h)
	}
	check(out.Encode(holds))
}
