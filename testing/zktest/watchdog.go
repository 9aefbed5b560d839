package zktest

// This file has the watchdog: it kills a server whose owner has ended.

import (
	"fmt"
	"io"
	"os/exec"
)

// watchScript reads the pid to guard from its standard input; an empty line means
// none. The input ends when the owner, the process that started the watchdog,
// closes the input or ends. Then the script kills the guarded process and removes the
// directory. Right after the kill the server may still create files, so rm is
// retried.
const watchScript = `trap '' HUP INT QUIT TERM
pid=
while read -r line; do pid=$line; done
[ -z "$pid" ] || kill -9 "$pid"
for try in 1 2 3 4 5 6 7 8 9 10; do
	rm -rf -- "$1" && exit
	sleep 1
done`

// watchdog is a shell process that outlives the owner just long enough to clean up. The
// watchdog is a child of the owner, not of the server, so that the owner reaps it. The
// watchdog runs as long as the directory exists, over restarts of the server.
type watchdog struct {
	cmd *exec.Cmd
	// in is the write end of a pipe, opened close-on-exec by Go: no other child keeps the
	// pipe open.
	in io.WriteCloser
}

func startWatchdog(dir string) (*watchdog, error) {
	cmd := exec.Command("sh", "-c", watchScript, "sh", dir)
	cmd.Dir = "/"
	in, err := startInGroup(cmd)
	if err != nil {
		return nil, err
	}
	return &watchdog{cmd, in}, nil
}

// guard makes the watchdog kill the process pid when the owner ends.
func (w *watchdog) guard(pid int) error {
	_, err := fmt.Fprintf(w.in, "%d\n", pid)
	return err
}

// release ends guard: the pid may now be reused by another process.
func (w *watchdog) release() {
	// An error means that the watchdog has ended, and does not use the pid.
	_, _ = io.WriteString(w.in, "\n")
}

// close ends the watchdog. The caller must have released the process and removed
// the directory.
func (w *watchdog) close() {
	_ = w.in.Close()
	_ = w.cmd.Wait()
}
