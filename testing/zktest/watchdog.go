package zktest

import (
	"fmt"
	"io"
	"os/exec"
)

// watchScript reads the pid to guard from its standard input, an empty line
// for none. The input ends when the owner closes it or vanishes, and then what
// is still guarded is killed and the directory removed. Right after the kill
// the dying server may still add files, so rm is tried again.
const watchScript = `trap '' HUP INT QUIT TERM
pid=
while read -r line; do pid=$line; done
[ -z "$pid" ] || kill -9 "$pid"
for try in 1 2 3 4 5 6 7 8 9 10; do
	rm -rf -- "$1" && exit
	sleep 1
done`

// watchdog is a shell process that outlives its owner just long enough to
// clean up after it. It is a child of the owner, not of the server, so that
// the owner reaps it; and it lives as long as the directory, not just as long
// as one run of the server.
type watchdog struct {
	cmd *exec.Cmd
	// in is the write end of the pipe. Go opens it close-on-exec, so no other
	// child keeps it open.
	in io.WriteCloser
}

func startWatchdog(dir string) (*watchdog, error) {
	cmd := exec.Command("sh", "-c", watchScript, "sh", dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = ownGroup()
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &watchdog{cmd, in}, nil
}

// guard makes pid the process that dies with the owner.
func (w *watchdog) guard(pid int) error {
	_, err := fmt.Fprintf(w.in, "%d\n", pid)
	return err
}

// release makes the watchdog forget the process, whose pid may now be reused.
func (w *watchdog) release() {
	// An error means that the watchdog is gone, and then nobody uses the pid.
	_, _ = io.WriteString(w.in, "\n")
}

// close ends the watchdog. The process must be released and the directory
// removed by then.
func (w *watchdog) close() {
	_ = w.in.Close()
	_ = w.cmd.Wait()
}
