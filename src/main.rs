//! The `urxe` command.

fn main() -> std::process::ExitCode {
    urxe::cli::main()
}
